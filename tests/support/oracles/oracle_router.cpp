#include "tests/support/oracles/oracle_router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sherd::oracle {
namespace {

using kernels::RouterScore;
using kernels::RouterShape;

Values row(const Values& logits, const RouterShape& shape, std::int64_t t) {
  const auto begin = logits.begin() + t * shape.experts;
  return {begin, begin + shape.experts};
}

double log_sum_exp(const Values& x) {
  double sum = 0.0;
  for (const double value : x) sum += std::exp(value);
  return std::log(sum);
}

Values softmax(const Values& x) {
  const double log_sum = log_sum_exp(x);
  Values out;
  for (const double value : x) out.push_back(std::exp(value - log_sum));
  return out;
}

Values scores(const RouterShape& shape, const Values& logits) {
  if (shape.score == RouterScore::kSoftmaxOfChosen) return logits;
  if (shape.score == RouterScore::kSoftmax) return softmax(logits);
  Values out;
  for (const double value : logits) out.push_back(1.0 / (1.0 + std::exp(-value)));
  return out;
}

Values probabilities(const RouterShape& shape, const Values& logits) {
  if (shape.score != RouterScore::kSigmoid) return softmax(logits);
  Values out = scores(shape, logits);
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& value : out) value /= sum;
  return out;
}

// The numbers of the `count` largest values, ascending; equal ones by number.
std::vector<std::int32_t> top(const Values& values, std::size_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

std::vector<std::int32_t> choose(const RouterShape& shape, Values values) {
  const std::int64_t size = shape.experts / shape.groups;
  Values of_groups;
  for (int g = 0; g < shape.groups; ++g) {
    Values group(values.begin() + g * size, values.begin() + (g + 1) * size);
    std::ranges::sort(group, std::greater<>());
    double sum = 0.0;
    for (int i = 0; i < shape.group_scores; ++i) sum += group[static_cast<std::size_t>(i)];
    of_groups.push_back(sum);
  }
  const auto kept = top(of_groups, static_cast<std::size_t>(shape.kept_groups));
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    if (std::ranges::count(kept, static_cast<std::int32_t>(e / size)) == 0) {
      values[static_cast<std::size_t>(e)] = -std::numeric_limits<double>::infinity();
    }
  }
  return top(values, static_cast<std::size_t>(shape.per_token));
}

}  // namespace

Values weights_of(const RouterShape& shape, const Values& logits, const Routing& routing) {
  Values weights;
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    const auto& chosen = routing.chosen[static_cast<std::size_t>(t)];
    if (chosen.empty()) {
      weights.insert(weights.end(), static_cast<std::size_t>(shape.per_token), 0.0);
      continue;
    }
    const Values score = scores(shape, row(logits, shape, t));
    Values own;
    for (const std::int32_t e : chosen) own.push_back(score[static_cast<std::size_t>(e)]);
    if (shape.score == RouterScore::kSoftmaxOfChosen) own = softmax(own);
    double by = 1.0;
    if (shape.normalise && shape.score != RouterScore::kSoftmaxOfChosen) {
      const double sum = std::accumulate(own.begin(), own.end(), 0.0);
      by = std::max<double>(sum, shape.least_sum) + shape.added_sum;
    }
    for (const double value : own) weights.push_back(shape.scale * value / by);
  }
  return weights;
}

Routing route(const RouterShape& shape, const Values& logits, const Values& bias,
              const std::vector<bool>& padding) {
  Routing routing;
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    if (!padding.empty() && padding[static_cast<std::size_t>(t)]) {
      routing.chosen.emplace_back();
      continue;
    }
    Values values = scores(shape, row(logits, shape, t));
    for (std::size_t e = 0; e < bias.size(); ++e) values[e] += bias[e];
    routing.chosen.push_back(choose(shape, values));
  }
  routing.weights = weights_of(shape, logits, routing);
  return routing;
}

double balance_loss(const RouterShape& shape, const Values& logits, const Routing& routing,
                    const Values& previous) {
  const bool per_sequence = shape.scope == kernels::BalanceScope::kSequence;
  const std::int64_t size = per_sequence ? shape.positions : shape.tokens();
  const auto E = static_cast<std::size_t>(shape.experts);
  double loss = 0.0;
  for (std::int64_t first = 0; first < shape.tokens(); first += size) {
    Values counts(E), sums(E);
    double tokens = 0.0;
    for (std::int64_t t = first; t < first + size; ++t) {
      const auto& chosen = routing.chosen[static_cast<std::size_t>(t)];
      if (chosen.empty()) continue;
      tokens += 1.0;
      for (const std::int32_t e : chosen) counts[static_cast<std::size_t>(e)] += 1.0;
      const Values p = probabilities(shape, row(logits, shape, t));
      for (std::size_t e = 0; e < E; ++e) sums[e] += p[e];
    }
    double tokens_of_counts = tokens;
    if (!previous.empty()) {
      counts.assign(previous.begin(), previous.end() - 1);
      tokens_of_counts = previous.back();
    }
    if (tokens == 0.0 || tokens_of_counts == 0.0) continue;
    double product = 0.0;
    for (std::size_t e = 0; e < E; ++e) {
      product += counts[e] / tokens_of_counts * (sums[e] / tokens);
    }
    loss += static_cast<double>(shape.balance) * static_cast<double>(E) / shape.per_token * product;
  }
  return loss;
}

double z_loss(const RouterShape& shape, const Values& logits, const Routing& routing) {
  const bool per_sequence = shape.scope == kernels::BalanceScope::kSequence;
  const std::int64_t size = per_sequence ? shape.positions : shape.tokens();
  double loss = 0.0;
  for (std::int64_t first = 0; first < shape.tokens(); first += size) {
    double sum = 0.0, tokens = 0.0;
    for (std::int64_t t = first; t < first + size; ++t) {
      if (routing.chosen[static_cast<std::size_t>(t)].empty()) continue;
      const double log_sum = log_sum_exp(row(logits, shape, t));
      sum += log_sum * log_sum;
      tokens += 1.0;
    }
    if (tokens > 0.0) loss += static_cast<double>(shape.z) * sum / tokens;
  }
  return loss;
}

}  // namespace sherd::oracle
