#include "engine/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace sherd::data {
namespace {

constexpr std::int64_t kBlock = Mixture::kBlock;

// By largest remainder.
std::vector<std::int64_t> counts_of(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  SHERD_CHECK(sum > 0.0, "weights with the sum {}", sum);
  std::vector<std::int64_t> counts;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (const double weight : weights) {
    const double share = weight / sum * static_cast<double>(kBlock);
    counts.push_back(static_cast<std::int64_t>(std::floor(share)));
    remainders.emplace_back(share - std::floor(share), remainders.size());
  }
  std::ranges::stable_sort(remainders, std::greater(), &std::pair<double, std::size_t>::first);
  std::int64_t left = kBlock - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; ++i, --left) ++counts[remainders[i % counts.size()].second];
  return counts;
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights)
    : weights_(weights), counts_(counts_of(weights)) {
  for (std::size_t i = 0; i < weights.size() && without_sequences_ < 0; ++i) {
    if (weights[i] > 0.0 && counts_[i] == 0) without_sequences_ = static_cast<int>(i);
  }
  std::vector<std::int32_t> taken(weights.size());
  for (std::int64_t n = 0; n < kBlock; ++n) {
    std::size_t next = 0;
    std::int64_t most = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const std::int64_t due = counts_[i] * (n + 1) - kBlock * taken[i];
      if (i == 0 || due > most) most = due, next = i;
    }
    source_[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(next);
    number_[static_cast<std::size_t>(n)] = taken[next]++;
  }
}

Mixture::Place Mixture::at(std::int64_t sequence) const {
  const auto n = static_cast<std::size_t>(sequence % kBlock);
  const int source = source_[n];
  return {source, sequence / kBlock * counts_[static_cast<std::size_t>(source)] + number_[n]};
}

std::int64_t Mixture::count(int source, std::int64_t num_sequences) const {
  const auto rest = static_cast<std::ptrdiff_t>(num_sequences % kBlock);
  return num_sequences / kBlock * counts_[static_cast<std::size_t>(source)] +
         std::count(source_.begin(), source_.begin() + rest, source);
}

double Mixture::smallest_weight(int source) const {
  std::vector<double> weights = weights_;
  double& weight = weights[static_cast<std::size_t>(source)];
  const auto has_one = [&] { return counts_of(weights)[static_cast<std::size_t>(source)] > 0; };
  double low = weight, high = weight;
  while (!has_one()) high = weight *= 2.0;
  for (int i = 0; i < 60; ++i) {
    weight = low + (high - low) / 2.0;
    (has_one() ? high : low) = weight;
  }
  // Rounded up to three digits, as a person would write it.
  const double unit = std::pow(10.0, std::floor(std::log10(high)) - 2.0);
  return std::ceil(high / unit) * unit;
}

}  // namespace sherd::data
