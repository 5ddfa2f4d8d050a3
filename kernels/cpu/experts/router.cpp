#include "kernels/cpu/experts/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/round_up.h"
#include "kernels/cpu/vector_math.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kTokens = 64;  // of one task
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Largest logit, and the sum of e^(l - largest).
struct Softmax {
  Softmax(const float* logits, std::int64_t count)
      : most(*std::max_element(logits, logits + count)) {
    for (std::int64_t e = 0; e < count; ++e) sum += fast_exp(logits[e] - most);
  }
  float operator()(float logit) const { return fast_exp(logit - most) / sum; }
  float log_sum() const { return most + fast_log(sum); }

  float most, sum = 0.0f;
};

// The scores of one token, of its E logits.
void scores_of(const RouterShape& shape, const float* logits, float* score) {
  const std::int64_t E = shape.experts;
  switch (shape.score) {
    case RouterScore::kSoftmax: {
      const Softmax softmax(logits, E);
      for (std::int64_t e = 0; e < E; ++e) score[e] = softmax(logits[e]);
      return;
    }
    case RouterScore::kSigmoid:
      for (std::int64_t e = 0; e < E; ++e) score[e] = fast_sigmoid(logits[e]);
      return;
    case RouterScore::kSoftmaxOfChosen:
      std::copy_n(logits, E, score);
  }
}

// The position of the largest value that isn't -inf any more; the first of equal ones. NaN is never
// larger.
std::int64_t largest(const float* value, std::int64_t count) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < count; ++i) {
    if (value[i] > value[best] || (std::isnan(value[best]) && !std::isnan(value[i]))) best = i;
  }
  return best;
}

// Experts of groups that aren't kept become -inf.
void keep_groups(const RouterShape& shape, float* value) {
  if (shape.groups <= 1 || shape.kept_groups >= shape.groups) return;
  const std::int64_t size = shape.experts / shape.groups;
  std::vector<float> of_group(static_cast<std::size_t>(shape.groups));
  for (int g = 0; g < shape.groups; ++g) {
    const float* own = value + g * size;
    const std::int64_t first = largest(own, size);
    float sum = own[first];
    if (shape.group_scores == 2 && size > 1) {
      float second = -kInfinity;
      for (std::int64_t i = 0; i < size; ++i) {
        if (i != first) second = std::max(second, own[i]);
      }
      sum += second;
    }
    of_group[static_cast<std::size_t>(g)] = sum;
  }
  std::vector<bool> kept(of_group.size());
  for (int i = 0; i < shape.kept_groups; ++i) {
    const auto best = static_cast<std::size_t>(largest(of_group.data(), shape.groups));
    kept[best] = true;
    of_group[best] = -kInfinity;
  }
  for (int g = 0; g < shape.groups; ++g) {
    if (!kept[static_cast<std::size_t>(g)]) std::fill_n(value + g * size, size, -kInfinity);
  }
}

// What the weights of the chosen are divided by, before the scale.
float divisor(const RouterShape& shape, float sum) {
  return std::max(sum, shape.least_sum) + shape.added_sum;
}

// The chosen of one token, ascending, and their weights.
void choose(const RouterShape& shape, const float* logits, const float* score, const float* bias,
            float* value, std::int32_t* chosen, float* weights) {
  const int k = shape.per_token;
  for (std::int64_t e = 0; e < shape.experts; ++e) value[e] = bias ? score[e] + bias[e] : score[e];
  keep_groups(shape, value);
  for (int j = 0; j < k; ++j) {
    std::int64_t best = largest(value, shape.experts);
    // Of values that are all -inf or NaN: the first that isn't chosen.
    while (std::find(chosen, chosen + j, static_cast<std::int32_t>(best)) != chosen + j) ++best;
    chosen[j] = static_cast<std::int32_t>(best);
    value[best] = -kInfinity;
  }
  std::sort(chosen, chosen + k);
  if (shape.score == RouterScore::kSoftmaxOfChosen) {
    float most = -kInfinity, sum = 0.0f;
    for (int j = 0; j < k; ++j) most = std::max(most, logits[chosen[j]]);
    for (int j = 0; j < k; ++j) sum += weights[j] = fast_exp(logits[chosen[j]] - most);
    for (int j = 0; j < k; ++j) weights[j] = shape.scale * (weights[j] / sum);
    return;
  }
  float sum = 0.0f;
  for (int j = 0; j < k; ++j) sum += weights[j] = score[chosen[j]];
  const float by = shape.normalise ? divisor(shape, sum) : 1.0f;
  for (int j = 0; j < k; ++j) weights[j] = shape.scale * (weights[j] / by);
}

// Whether token `t` is padding: no document contains it.
bool is_padding(const Documents& documents, std::int64_t t) {
  if (!documents) return false;
  const auto* starts = documents.starts.as<std::int32_t>();
  const auto* after = std::upper_bound(starts, starts + documents.count(), t);
  const std::int64_t i = after - starts - 1;
  return t >= starts[i] + documents.lengths.as<std::int32_t>()[i];
}

// Scores that add up to 1 over the experts, for the losses.
void probabilities(const RouterShape& shape, const float* logits, float* p) {
  if (shape.score == RouterScore::kSoftmaxOfChosen) {
    const Softmax softmax(logits, shape.experts);
    for (std::int64_t e = 0; e < shape.experts; ++e) p[e] = softmax(logits[e]);
    return;
  }
  scores_of(shape, logits, p);
  if (shape.score == RouterScore::kSoftmax) return;
  float sum = 0.0f;
  for (std::int64_t e = 0; e < shape.experts; ++e) sum += p[e];
  for (std::int64_t e = 0; e < shape.experts; ++e) p[e] /= sum;
}

// Sums over the tokens of a sequence, in f64: of p, and of squares of the logits' logsumexp.
struct SequenceSums {
  std::vector<double> p;
  double z = 0.0;
  std::int64_t tokens = 0;
};

SequenceSums sums_of(const RouterForward& args, std::int64_t sequence) {
  const RouterShape& shape = args.shape;
  const std::int64_t E = shape.experts;
  SequenceSums sums{std::vector<double>(static_cast<std::size_t>(E))};
  std::vector<float> p(static_cast<std::size_t>(E));
  for (std::int64_t t = sequence * shape.positions; t < (sequence + 1) * shape.positions; ++t) {
    if (args.chosen.as<std::int32_t>()[t * shape.per_token] < 0) continue;
    ++sums.tokens;
    const float* logits = args.logits.as<float>() + t * E;
    if (shape.balance > 0.0f) {
      probabilities(shape, logits, p.data());
      for (std::size_t e = 0; e < p.size(); ++e) sums.p[e] += static_cast<double>(p[e]);
    }
    if (shape.z > 0.0f) {
      const auto log_sum = static_cast<double>(Softmax(logits, E).log_sum());
      sums.z += log_sum * log_sum;
    }
  }
  return sums;
}

// Losses of one balance group, and the derivative by p of each of its tokens.
void finish_group(const RouterForward& args, const SequenceSums& sums,
                  const std::vector<std::int64_t>& counts, std::int64_t tokens_of_counts,
                  float* balance) {
  const RouterShape& shape = args.shape;
  const std::int64_t E = shape.experts;
  const auto n = static_cast<double>(sums.tokens);
  const double scale = sums.tokens == 0 || tokens_of_counts == 0
                           ? 0.0
                           : static_cast<double>(shape.balance) * static_cast<double>(E) /
                                 (shape.per_token * static_cast<double>(tokens_of_counts) * n);
  double loss = 0.0;
  for (std::int64_t e = 0; e < E; ++e) {
    const auto i = static_cast<std::size_t>(e);
    const double slope = scale * static_cast<double>(counts[i]);
    loss += slope * sums.p[i];
    balance[e] = static_cast<float>(slope);
  }
  balance[E] = static_cast<float>(loss);
  balance[E + 1] =
      sums.tokens == 0 ? 0.0f : static_cast<float>(static_cast<double>(shape.z) * sums.z / n);
}

void finish_losses(const RouterForward& args, const std::vector<SequenceSums>& sums) {
  const RouterShape& shape = args.shape;
  const auto E = static_cast<std::size_t>(shape.experts);
  const auto counts_of = [&](std::int64_t sequence) {
    const auto* counts = args.counts.as<std::int32_t>() + sequence * shape.experts;
    return std::vector<std::int64_t>(counts, counts + E);
  };
  if (shape.scope == BalanceScope::kSequence) {
    for (std::int64_t b = 0; b < shape.sequences; ++b) {
      const SequenceSums& own = sums[static_cast<std::size_t>(b)];
      finish_group(args, own, counts_of(b), own.tokens,
                   args.balance.as<float>() + b * (shape.experts + 2));
    }
    return;
  }
  SequenceSums all{std::vector<double>(E)};
  std::vector<std::int64_t> counts(E);
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    const SequenceSums& own = sums[static_cast<std::size_t>(b)];
    const std::vector<std::int64_t> own_counts = counts_of(b);
    for (std::size_t e = 0; e < E; ++e) {
      all.p[e] += own.p[e];
      counts[e] += own_counts[e];
    }
    all.z += own.z;
    all.tokens += own.tokens;
  }
  std::int64_t tokens = all.tokens;
  if (shape.scope == BalanceScope::kPreviousStep) {
    const auto* previous = args.previous_counts.as<std::int32_t>();
    counts.assign(previous, previous + E);
    tokens = previous[E];
  }
  finish_group(args, all, counts, tokens, args.balance.as<float>());
}

// The derivative by the chosen experts' scores or logits, and where those are of a softmax, what it
// takes from all.
void add_weight_gradient(const RouterBackward& args, std::int64_t t, const float* score,
                         float* d_logits) {
  const RouterShape& shape = args.shape;
  const int k = shape.per_token;
  const std::int32_t* chosen = args.chosen.as<std::int32_t>() + t * k;
  const float* dw = args.d_weights.as<float>() + t * k;
  const float* weights = args.weights.as<float>() + t * k;
  if (shape.score == RouterScore::kSoftmaxOfChosen) {
    float mean = 0.0f;  // weights are scale times a softmax
    for (int j = 0; j < k; ++j) mean += weights[j] * dw[j];
    mean /= shape.scale;
    for (int j = 0; j < k; ++j) d_logits[chosen[j]] += weights[j] * (dw[j] - mean);
    return;
  }
  float sum = 0.0f, mean = 0.0f;  // of the chosen scores; of dw by normalised scores
  for (int j = 0; j < k; ++j) sum += score[chosen[j]];
  const float by = shape.normalise ? divisor(shape, sum) : 1.0f;
  if (shape.normalise && sum >= shape.least_sum) {
    for (int j = 0; j < k; ++j) mean += score[chosen[j]] / by * dw[j];
  }
  const float factor = shape.scale / by;
  if (shape.score == RouterScore::kSigmoid) {
    for (int j = 0; j < k; ++j) {
      const float s = score[chosen[j]];
      d_logits[chosen[j]] += factor * (dw[j] - mean) * (s * (1.0f - s));
    }
    return;
  }
  float taken = 0.0f;
  for (int j = 0; j < k; ++j) taken += factor * (dw[j] - mean) * score[chosen[j]];
  for (int j = 0; j < k; ++j) d_logits[chosen[j]] += factor * (dw[j] - mean) * score[chosen[j]];
  for (std::int64_t e = 0; e < shape.experts; ++e) d_logits[e] -= taken * score[e];
}

void add_loss_gradients(const RouterBackward& args, const float* logits, const float* slopes,
                        float tokens, std::vector<float>& p, float* d_logits) {
  const RouterShape& shape = args.shape;
  const auto E = static_cast<std::size_t>(shape.experts);
  if (shape.balance > 0.0f) {
    probabilities(shape, logits, p.data());
    float mean = 0.0f;
    for (std::size_t e = 0; e < E; ++e) mean += p[e] * slopes[e];
    for (std::size_t e = 0; e < E; ++e) {
      // Of a sigmoid p (1 - s) is ds / (sum of s).
      const float by_logit =
          shape.score == RouterScore::kSigmoid ? p[e] * (1.0f - fast_sigmoid(logits[e])) : p[e];
      d_logits[e] += args.loss_scale * by_logit * (slopes[e] - mean);
    }
  }
  if (shape.z > 0.0f) {
    const Softmax softmax(logits, shape.experts);
    const float factor = args.loss_scale * 2.0f * shape.z / tokens * softmax.log_sum();
    for (std::size_t e = 0; e < E; ++e) d_logits[e] += factor * softmax(logits[e]);
  }
}

}  // namespace

void router_forward(ThreadTeam& team, const RouterForward& args) {
  const RouterShape& shape = args.shape;
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  const float* bias = args.bias ? args.bias.as<float>() : nullptr;
  team.parallel_for(ceil_div(T, kTokens), [&](std::int64_t task, int) {
    std::vector<float> score(static_cast<std::size_t>(E)), value(static_cast<std::size_t>(E));
    for (std::int64_t t = task * kTokens; t < std::min(T, (task + 1) * kTokens); ++t) {
      std::int32_t* chosen = args.chosen.as<std::int32_t>() + t * k;
      float* weights = args.weights.as<float>() + t * k;
      if (is_padding(args.documents, t)) {
        std::fill_n(chosen, k, -1);
        std::fill_n(weights, k, 0.0f);
        continue;
      }
      const float* logits = args.logits.as<float>() + t * E;
      scores_of(shape, logits, score.data());
      choose(shape, logits, score.data(), bias, value.data(), chosen, weights);
    }
  });
  std::vector<SequenceSums> sums(static_cast<std::size_t>(shape.sequences));
  team.parallel_for(shape.sequences, [&](std::int64_t b, int) {
    std::int32_t* counts = args.counts.as<std::int32_t>() + b * E;
    std::fill_n(counts, E, 0);
    const auto* chosen = args.chosen.as<std::int32_t>();
    for (std::int64_t i = b * shape.positions * k; i < (b + 1) * shape.positions * k; ++i) {
      if (chosen[i] >= 0) ++counts[chosen[i]];
    }
    sums[static_cast<std::size_t>(b)] = sums_of(args, b);
  });
  finish_losses(args, sums);
}

void router_totals(const RouterTotals& args) {
  const std::int64_t E = args.shape.experts;
  auto* totals = args.totals.as<double>();
  for (std::int64_t i = 0; i < args.shape.sequences * E; ++i) {
    totals[i % E] += static_cast<double>(args.counts.as<std::int32_t>()[i]);
  }
  for (std::int64_t group = 0; group < args.shape.balance_groups(); ++group) {
    const float* losses = args.balance.as<float>() + group * (E + 2) + E;
    for (int which = 0; which < 2; ++which) {
      totals[E + which] += static_cast<double>(losses[which]);
    }
  }
}

void router_correction(const RouterCorrection& args) {
  const auto experts = std::ssize(args.counts);
  const std::int64_t sum = std::accumulate(args.counts.begin(), args.counts.end(), std::int64_t{0});
  auto* bias = args.bias.as<float>();
  for (std::int64_t i = 0; i < args.bias.numel; ++i) {
    const std::int64_t own = experts * args.counts[static_cast<std::size_t>(args.first + i)];
    if (own < sum) bias[i] += args.rate;
    if (own > sum) bias[i] -= args.rate;
  }
}

void router_backward(ThreadTeam& team, const RouterBackward& args) {
  const RouterShape& shape = args.shape;
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  const bool per_sequence = shape.scope == BalanceScope::kSequence;
  // Tokens of each balance group, for the mean of z.
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(shape.balance_groups()));
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t group = per_sequence ? t / shape.positions : 0;
    tokens[static_cast<std::size_t>(group)] += args.chosen.as<std::int32_t>()[t * k] >= 0;
  }
  team.parallel_for(ceil_div(T, kTokens), [&](std::int64_t task, int) {
    std::vector<float> score(static_cast<std::size_t>(E));
    for (std::int64_t t = task * kTokens; t < std::min(T, (task + 1) * kTokens); ++t) {
      float* d_logits = args.d_logits.as<float>() + t * E;
      std::fill_n(d_logits, E, 0.0f);
      if (args.chosen.as<std::int32_t>()[t * k] < 0) continue;
      const float* logits = args.logits.as<float>() + t * E;
      scores_of(shape, logits, score.data());
      add_weight_gradient(args, t, score.data(), d_logits);
      const std::int64_t group = per_sequence ? t / shape.positions : 0;
      add_loss_gradients(args, logits, args.balance.as<float>() + group * (E + 2),
                         static_cast<float>(tokens[static_cast<std::size_t>(group)]), score,
                         d_logits);
    }
  });
}

}  // namespace sherd::kernels::cpu
