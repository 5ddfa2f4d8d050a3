#include "kernels/cpu/experts/router.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/round_up.h"
#include "kernels/router_rules.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kTokens = 64;  // of one task

// Sums over the tokens of a sequence, in f64: of p, and of squares of the logits' logsumexp.
struct SequenceSums {
  std::vector<double> p;
  double z = 0.0;
};

void add_token(const RouterShape& shape, const float* logits, SequenceSums& sums) {
  if (shape.balance > 0.0f) {
    const auto p = router_rules::probabilities_of(shape, logits);
    for (std::size_t e = 0; e < sums.p.size(); ++e) {
      sums.p[e] += static_cast<double>(p(logits[e]));
    }
  }
  if (shape.z > 0.0f) {
    const auto log_sum =
        static_cast<double>(router_rules::softmax_of(logits, shape.experts).log_sum());
    sums.z += log_sum * log_sum;
  }
}

// What losses are formed from. `counts` [B, E]: of whole sequences.
struct Counted {
  const RouterShape& shape;
  ConstTensor logits, chosen, counts, previous_counts;
  Tensor balance;
};

SequenceSums sums_of(const Counted& args, std::int64_t sequence) {
  const RouterShape& shape = args.shape;
  const std::int64_t E = shape.experts, S = shape.positions;
  SequenceSums sums{std::vector<double>(static_cast<std::size_t>(E))};
  SequenceSums chunk = sums;
  for (std::int64_t first = 0; first < S; first += router_rules::kChunk) {
    std::ranges::fill(chunk.p, 0.0);
    chunk.z = 0.0;
    for (std::int64_t i = first; i < std::min(S, first + router_rules::kChunk); ++i) {
      const std::int64_t t = sequence * S + i;
      if (args.chosen.as<std::int32_t>()[t * shape.per_token] < 0) continue;
      add_token(shape, args.logits.as<float>() + t * E, chunk);
    }
    for (std::size_t e = 0; e < sums.p.size(); ++e) sums.p[e] += chunk.p[e];
    sums.z += chunk.z;
  }
  return sums;
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Losses of one balance group, and the derivative by p of each of its tokens.
void finish_group(const RouterShape& shape, const SequenceSums& sums, std::int64_t tokens,
                  const std::vector<std::int64_t>& counts, std::int64_t counted, float* balance) {
  double loss = 0.0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const double slope = router_rules::slope_of(shape, tokens, counted, counts[e]);
    loss += slope * sums.p[e];
    balance[e] = static_cast<float>(slope);
  }
  balance[shape.experts] = static_cast<float>(loss);
  balance[shape.experts + 1] =
      tokens == 0
          ? 0.0f
          : static_cast<float>(static_cast<double>(shape.z) * sums.z / static_cast<double>(tokens));
}

void form_losses(ThreadTeam& team, const Counted& args) {
  const RouterShape& shape = args.shape;
  std::vector<SequenceSums> sums(static_cast<std::size_t>(shape.sequences));
  team.parallel_for(shape.sequences, [&](std::int64_t b, int) {
    sums[static_cast<std::size_t>(b)] = sums_of(args, b);
  });
  const auto E = static_cast<std::size_t>(shape.experts);
  const auto counts_of = [&](std::int64_t sequence) {
    const auto* counts = args.counts.as<std::int32_t>() + sequence * shape.experts;
    return std::vector<std::int64_t>(counts, counts + E);
  };
  if (shape.scope == BalanceScope::kSequence) {
    for (std::int64_t b = 0; b < shape.sequences; ++b) {
      const std::vector<std::int64_t> counts = counts_of(b);
      const std::int64_t tokens = sum_of(counts) / shape.per_token;
      finish_group(shape, sums[static_cast<std::size_t>(b)], tokens, counts, tokens,
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
  }
  const std::int64_t tokens = sum_of(counts) / shape.per_token;
  std::int64_t counted = tokens;
  if (shape.scope == BalanceScope::kPreviousStep) {
    const auto* previous = args.previous_counts.as<std::int32_t>();
    counts.assign(previous, previous + E);
    counted = previous[E];
  }
  finish_group(shape, all, tokens, counts, counted, args.balance.as<float>());
}

}  // namespace

void router_forward(ThreadTeam& team, const RouterForward& args) {
  const RouterShape& shape = args.shape;
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  const float* bias = args.bias ? args.bias.as<float>() : nullptr;
  const auto* starts = args.documents ? args.documents.starts.as<std::int32_t>() : nullptr;
  const auto* lengths = args.documents ? args.documents.lengths.as<std::int32_t>() : nullptr;
  team.parallel_for(ceil_div(T, kTokens), [&](std::int64_t task, int) {
    std::vector<float> value(static_cast<std::size_t>(router_rules::scratch_numel(shape)));
    for (std::int64_t t = task * kTokens; t < std::min(T, (task + 1) * kTokens); ++t) {
      std::int32_t* chosen = args.chosen.as<std::int32_t>() + t * k;
      float* weights = args.weights.as<float>() + t * k;
      const std::int64_t token = args.part.token_of(t, shape.positions);
      if (router_rules::is_padding(starts, lengths, args.documents.count(), token)) {
        std::fill_n(chosen, k, -1);
        std::fill_n(weights, k, 0.0f);
        continue;
      }
      router_rules::choose(shape, args.logits.as<float>() + t * E, bias, value.data(), chosen,
                           weights);
    }
  });
  team.parallel_for(shape.sequences, [&](std::int64_t b, int) {
    std::int32_t* counts = args.counts.as<std::int32_t>() + b * E;
    std::fill_n(counts, E, 0);
    const auto* chosen = args.chosen.as<std::int32_t>();
    for (std::int64_t i = b * shape.positions * k; i < (b + 1) * shape.positions * k; ++i) {
      if (chosen[i] >= 0) ++counts[chosen[i]];
    }
  });
  if (!args.balance) return;
  form_losses(team,
              {shape, args.logits, args.chosen, args.counts, args.previous_counts, args.balance});
}

void router_losses(ThreadTeam& team, const RouterLosses& args) {
  const std::int64_t numel = args.counts.numel;
  auto* counts = args.counts.as<std::int32_t>();
  std::fill_n(counts, numel, 0);
  for (std::int64_t i = 0; i < args.rank_counts.numel; ++i) {
    counts[i % numel] += args.rank_counts.as<std::int32_t>()[i];
  }
  form_losses(team, {args.shape, args.logits, args.chosen, args.counts, args.previous_counts,
                     args.balance});
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
  SHERD_CHECK(shape.score != RouterScore::kSparsemixer, "sparsemixer has no gradient here");
  // Tokens of each balance group, for the mean of z.
  std::vector<std::int64_t> choices(static_cast<std::size_t>(shape.balance_groups()));
  for (std::int64_t i = 0; i < shape.sequences * E; ++i) {
    choices[static_cast<std::size_t>(per_sequence ? i / E : 0)] +=
        args.counts.as<std::int32_t>()[i];
  }
  team.parallel_for(ceil_div(T, kTokens), [&](std::int64_t task, int) {
    for (std::int64_t t = task * kTokens; t < std::min(T, (task + 1) * kTokens); ++t) {
      float* d_logits = args.d_logits.as<float>() + t * E;
      const std::int32_t* chosen = args.chosen.as<std::int32_t>() + t * k;
      if (chosen[0] < 0) {
        std::fill_n(d_logits, E, 0.0f);
        continue;
      }
      const std::int64_t group = per_sequence ? t / shape.positions : 0;
      const router_rules::Token token{
          .logits = args.logits.as<float>() + t * E,
          .chosen = chosen,
          .weights = args.weights.as<float>() + t * k,
          .d_weights = args.d_weights.as<float>() + t * k,
          .slopes = args.balance.as<float>() + group * (E + 2),
          .tokens = static_cast<float>(choices[static_cast<std::size_t>(group)] / k),
          .loss_scale = args.loss_scale};
      const auto gradient = router_rules::gradient_of(shape, token);
      int next = 0;
      for (std::int64_t e = 0; e < E; ++e) {
        const bool is_chosen = next < k && chosen[next] == e;
        d_logits[e] = gradient.by_logit(shape, token, e, is_chosen ? next : -1);
        next += is_chosen;
      }
    }
  });
}

}  // namespace sherd::kernels::cpu
