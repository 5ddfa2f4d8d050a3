/// What a router decides for one token (kernels/router.h), in code for host and device: the same
/// IEEE operations in the same order, so that CPUs and GPUs choose the same experts and weights.
///
/// `Values` is what numbers of one token are kept in: a pointer, or on a GPU an array whose elements
/// lie apart.
#pragma once

#include "kernels/device_common/math.h"
#include "kernels/router.h"

namespace sherd::kernels::router_rules {

/// Neighbouring tokens of a sequence whose losses are added first.
inline constexpr std::int64_t kChunk = 32;

inline std::int64_t chunks_of(const RouterShape& shape) {
  return (shape.positions + kChunk - 1) / kChunk;
}

/// Largest logit, and the sum of e^(l - largest).
struct Softmax {
  float most = 0.0f, sum = 0.0f;

  SHERD_HOST_DEVICE float operator()(float logit) const {
    return device_common::fast_exp(logit - most) / sum;
  }
  SHERD_HOST_DEVICE float log_sum() const { return most + device_common::fast_log(sum); }
};
SHERD_HOST_DEVICE inline Softmax softmax_of(const float* logits, std::int64_t count) {
  Softmax softmax{logits[0], 0.0f};
  for (std::int64_t e = 1; e < count; ++e) {
    if (softmax.most < logits[e]) softmax.most = logits[e];
  }
  for (std::int64_t e = 0; e < count; ++e) {
    softmax.sum += device_common::fast_exp(logits[e] - softmax.most);
  }
  return softmax;
}

/// The scores of one token, by their logits.
struct Scores {
  RouterScore kind = RouterScore::kSoftmax;
  Softmax softmax{};

  SHERD_HOST_DEVICE float operator()(float logit) const {
    if (kind == RouterScore::kSoftmax) return softmax(logit);
    return kind == RouterScore::kSigmoid ? device_common::fast_sigmoid(logit) : logit;
  }
};
SHERD_HOST_DEVICE inline Scores scores_of(const RouterShape& shape, const float* logits) {
  Scores scores;
  scores.kind = shape.score;
  if (shape.score == RouterScore::kSoftmax) scores.softmax = softmax_of(logits, shape.experts);
  return scores;
}

/// Scores that add up to 1 over the experts, for the losses.
struct Probabilities {
  bool sigmoid = false;
  Softmax softmax{};  ///< of sigmoids only their sum

  SHERD_HOST_DEVICE float operator()(float logit) const {
    return sigmoid ? device_common::fast_sigmoid(logit) / softmax.sum : softmax(logit);
  }
};
SHERD_HOST_DEVICE inline Probabilities probabilities_of(const RouterShape& shape,
                                                        const float* logits) {
  Probabilities p;
  p.sigmoid = shape.score == RouterScore::kSigmoid;
  if (!p.sigmoid) {
    p.softmax = softmax_of(logits, shape.experts);
    return p;
  }
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    p.softmax.sum += device_common::fast_sigmoid(logits[e]);
  }
  return p;
}

/// The position of the largest value that isn't -inf any more; the first of equal ones. NaN is never
/// larger.
template <class Values>
SHERD_HOST_DEVICE std::int64_t largest(const Values& value, std::int64_t first,
                                       std::int64_t count) {
  std::int64_t best = first;
  float most = value[first];
  for (std::int64_t i = first + 1; i < first + count; ++i) {
    const float own = value[i];
    if (own > most || (most != most && own == own)) {
      best = i;
      most = own;
    }
  }
  return best;
}

/// Numbers that `choose` needs room for.
SHERD_HOST_DEVICE inline std::int64_t scratch_numel(const RouterShape& shape) {
  return shape.experts + (shape.groups > 1 ? 2 * shape.groups : 0);
}

/// Experts of groups that aren't kept become -inf. After the experts' values, `value` has room for
/// each group's value, and for whether it is kept.
template <class Values>
SHERD_HOST_DEVICE void keep_groups(const RouterShape& shape, const Values& value) {
  if (shape.groups <= 1 || shape.kept_groups >= shape.groups) return;
  const std::int64_t size = shape.experts / shape.groups, groups = shape.experts;
  const std::int64_t kept = groups + shape.groups;
  for (int g = 0; g < shape.groups; ++g) {
    const std::int64_t first = largest(value, g * size, size);
    float sum = value[first];
    if (shape.group_scores == 2 && size > 1) {
      float second = -device_common::kInfinity;
      for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
        if (i != first && second < value[i]) second = value[i];
      }
      sum += second;
    }
    value[groups + g] = sum;
    value[kept + g] = 0.0f;
  }
  for (int i = 0; i < shape.kept_groups; ++i) {
    const std::int64_t best = largest(value, groups, shape.groups);
    value[best + shape.groups] = 1.0f;
    value[best] = -device_common::kInfinity;
  }
  for (int g = 0; g < shape.groups; ++g) {
    if (value[kept + g] != 0.0f) continue;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) value[i] = -device_common::kInfinity;
  }
}

/// What the weights of the chosen are divided by, before the scale.
SHERD_HOST_DEVICE inline float divisor(const RouterShape& shape, float sum) {
  return (sum < shape.least_sum ? shape.least_sum : sum) + shape.added_sum;
}

/// The weights of the chosen experts.
SHERD_HOST_DEVICE inline void weigh(const RouterShape& shape, const float* logits,
                                    const Scores& scores, const std::int32_t* chosen,
                                    float* weights) {
  const int k = shape.per_token;
  float sum = 0.0f;
  if (shape.score == RouterScore::kSoftmaxOfChosen) {
    float most = -device_common::kInfinity;
    for (int j = 0; j < k; ++j) {
      if (most < logits[chosen[j]]) most = logits[chosen[j]];
    }
    for (int j = 0; j < k; ++j) {
      sum += weights[j] = device_common::fast_exp(logits[chosen[j]] - most);
    }
  } else {
    for (int j = 0; j < k; ++j) sum += weights[j] = scores(logits[chosen[j]]);
    if (!shape.normalise) sum = 1.0f;
    if (shape.normalise) sum = divisor(shape, sum);
  }
  for (int j = 0; j < k; ++j) weights[j] = shape.scale * (weights[j] / sum);
}

/// The first number from `first` on that isn't one of `count` ascending ones.
SHERD_HOST_DEVICE inline std::int32_t unchosen_from(std::int32_t first, const std::int32_t* chosen,
                                                    int count) {
  for (int i = 0; i < count; ++i) first += chosen[i] == first;
  return first;
}

/// sparsemixer's weight of expert `best`: its softmax over near ties, among which `without` isn't.
SHERD_HOST_DEVICE inline float weight_of_near_tie(const RouterShape& shape, const float* logits,
                                                  std::int64_t best, std::int64_t without) {
  const float most = logits[best];
  float sum = 0.0f;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    if (e == without) continue;
    const float own = logits[e], size = own < 0.0f ? -own : own;
    const bool is_far = (most - own) / (size < most ? most : size) > 2.0f * shape.jitter;
    if (!is_far) sum += device_common::fast_exp(own - most);
  }
  return 1.0f / sum;
}

template <class Values>
SHERD_HOST_DEVICE void mix_sparsely(const RouterShape& shape, const float* logits,
                                    const Values& value, std::int32_t* chosen, float* weights) {
  for (std::int64_t e = 0; e < shape.experts; ++e) value[e] = logits[e];
  const std::int64_t first = largest(value, 0, shape.experts);
  value[first] = -device_common::kInfinity;
  auto second = static_cast<std::int32_t>(largest(value, 0, shape.experts));
  if (second == first) second = first == 0 ? 1 : 0;  // all the others are -inf
  const int of_first = first < second ? 0 : 1;
  chosen[of_first] = static_cast<std::int32_t>(first);
  chosen[1 - of_first] = second;
  weights[of_first] = weight_of_near_tie(shape, logits, first, -1);
  weights[1 - of_first] = weight_of_near_tie(shape, logits, second, first);
}

/// The chosen of one token, ascending, and their weights. `value`: scratch_numel numbers.
template <class Values>
SHERD_HOST_DEVICE void choose(const RouterShape& shape, const float* logits, const float* bias,
                              const Values& value, std::int32_t* chosen, float* weights) {
  if (shape.score == RouterScore::kSparsemixer) {
    return mix_sparsely(shape, logits, value, chosen, weights);
  }
  const int k = shape.per_token;
  const Scores scores = scores_of(shape, logits);
  const bool by_logit =
      shape.score == RouterScore::kSigmoid && bias == nullptr && shape.groups <= 1;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    const float score = by_logit ? logits[e] : scores(logits[e]);
    value[e] = bias != nullptr ? score + bias[e] : score;
  }
  keep_groups(shape, value);
  for (int j = 0; j < k; ++j) {
    auto best = static_cast<std::int32_t>(largest(value, 0, shape.experts));
    // Of values that are all -inf or NaN: the first from here that isn't chosen.
    best = unchosen_from(best, chosen, j);
    if (best == shape.experts) best = unchosen_from(0, chosen, j);
    int place = j;
    for (; place > 0 && chosen[place - 1] > best; --place) chosen[place] = chosen[place - 1];
    chosen[place] = best;
    value[best] = -device_common::kInfinity;
  }
  weigh(shape, logits, scores, chosen, weights);
}

/// Whether token `t` is padding: no document contains it.
SHERD_HOST_DEVICE inline bool is_padding(const std::int32_t* starts, const std::int32_t* lengths,
                                         std::int64_t documents, std::int64_t t) {
  if (starts == nullptr) return false;
  std::int64_t first = 0, count = documents;  // the first that starts after `t`
  while (count > 0) {
    const std::int64_t half = count / 2;
    const bool before = starts[first + half] <= t;
    first = before ? first + half + 1 : first;
    count = before ? count - half - 1 : half;
  }
  return t >= starts[first - 1] + lengths[first - 1];
}

/// The derivative of a balance group's loss by p of an expert that `count` of `counted` tokens
/// chose, for `tokens` tokens.
SHERD_HOST_DEVICE inline double slope_of(const RouterShape& shape, std::int64_t tokens,
                                         std::int64_t counted, std::int64_t count) {
  if (tokens == 0 || counted == 0) return 0.0;
  const double scale =
      static_cast<double>(shape.balance) * static_cast<double>(shape.experts) /
      (shape.per_token * static_cast<double>(counted) * static_cast<double>(tokens));
  return scale * static_cast<double>(count);
}

/// One token's numbers for the backward.
struct Token {
  const float* logits = nullptr;
  const std::int32_t* chosen = nullptr;
  const float *weights = nullptr, *d_weights = nullptr;
  const float* slopes = nullptr;  ///< of its balance group
  float tokens = 0.0f;            ///< of its balance group
  float loss_scale = 1.0f;
};

/// The gradient of one token's logits: what all experts have in common, then one after the other.
struct Gradient {
  Scores scores{};
  Probabilities p{};
  Softmax all{};
  float mean = 0.0f, factor = 0.0f, taken = 0.0f;  ///< of the chosen experts' weights
  float mean_slope = 0.0f, z = 0.0f;               ///< of the losses

  /// By the logit of expert `e`, which is choice `j`, or -1.
  SHERD_HOST_DEVICE float by_logit(const RouterShape& shape, const Token& token, std::int64_t e,
                                   int j) const {
    const float logit = token.logits[e];
    float d = 0.0f;
    if (shape.score == RouterScore::kSoftmaxOfChosen) {
      if (j >= 0) d += token.weights[j] * (token.d_weights[j] - mean);
    } else if (shape.score == RouterScore::kSigmoid) {
      const float s = scores(logit);
      if (j >= 0) d += factor * (token.d_weights[j] - mean) * (s * (1.0f - s));
    } else {
      const float s = scores(logit);
      if (j >= 0) d += factor * (token.d_weights[j] - mean) * s;
      d -= taken * s;
    }
    if (shape.balance > 0.0f) {
      // Of a sigmoid p (1 - s) is ds / (sum of s).
      const float own = p(logit);
      const float by = p.sigmoid ? own * (1.0f - device_common::fast_sigmoid(logit)) : own;
      d += token.loss_scale * by * (token.slopes[e] - mean_slope);
    }
    if (shape.z > 0.0f) d += z * all(logit);
    return d;
  }
};
SHERD_HOST_DEVICE inline Gradient gradient_of(const RouterShape& shape, const Token& token) {
  Gradient gradient;
  const int k = shape.per_token;
  gradient.scores = scores_of(shape, token.logits);
  if (shape.score == RouterScore::kSoftmaxOfChosen) {
    // Weights are scale times a softmax.
    for (int j = 0; j < k; ++j) gradient.mean += token.weights[j] * token.d_weights[j];
    gradient.mean /= shape.scale;
  } else {
    float sum = 0.0f;  // of the chosen scores
    for (int j = 0; j < k; ++j) sum += gradient.scores(token.logits[token.chosen[j]]);
    const float by = shape.normalise ? divisor(shape, sum) : 1.0f;
    if (shape.normalise && sum >= shape.least_sum) {
      for (int j = 0; j < k; ++j) {
        gradient.mean += gradient.scores(token.logits[token.chosen[j]]) / by * token.d_weights[j];
      }
    }
    gradient.factor = shape.scale / by;
    for (int j = 0; j < k; ++j) {
      gradient.taken += gradient.factor * (token.d_weights[j] - gradient.mean) *
                        gradient.scores(token.logits[token.chosen[j]]);
    }
  }
  if (shape.balance > 0.0f) {
    gradient.p = probabilities_of(shape, token.logits);
    for (std::int64_t e = 0; e < shape.experts; ++e) {
      gradient.mean_slope += gradient.p(token.logits[e]) * token.slopes[e];
    }
  }
  if (shape.z > 0.0f) {
    gradient.all = softmax_of(token.logits, shape.experts);
    gradient.z = token.loss_scale * 2.0f * shape.z / token.tokens * gradient.all.log_sum();
  }
  return gradient;
}

}  // namespace sherd::kernels::router_rules
