#include "kernels/cpu/sparse.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/cpu/blocks.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kSquaresBlock = 64;

float factor_of(const SparseAccumulation& args) {
  if (!args.squares) return 1.0f;
  double sum = 0.0;
  for (std::int64_t b = 0; b < args.squares.numel; ++b) sum += args.squares.as<double>()[b];
  const double norm = std::sqrt(sum);
  if (!std::isfinite(norm) || norm <= args.bound) return 1.0f;
  return static_cast<float>(args.bound / norm);
}

float threshold_of(const SparseRules& rules, const float* x, std::int64_t numel,
                   std::int64_t num_samples) {
  const std::int64_t stride = numel / num_samples;
  std::vector<float> samples(static_cast<std::size_t>(num_samples));
  for (std::int64_t i = 0; i < num_samples; ++i) {
    samples[static_cast<std::size_t>(i)] = std::abs(x[i * stride]);
  }
  const auto top = samples.begin() + num_chosen(rules.ratio, num_samples) - 1;
  std::nth_element(samples.begin(), top, samples.end(), std::greater<>());
  return *top;
}

template <class Test>
void choose(const float* x, std::int64_t numel, std::int64_t first, std::int64_t count,
            SparseEntry* entries, Test&& test) {
  std::int64_t chosen = 0;
  for (std::int64_t i = 0; i < numel && chosen < count; ++i) {
    if (test(x[i])) entries[chosen++] = {static_cast<std::uint32_t>(first + i), x[i]};
  }
  std::fill(entries + chosen, entries + count, SparseEntry{});
}

}  // namespace

void squares_of_blocks(ThreadTeam& team, ConstTensor x, Tensor sums) {
  const float* in = x.as<float>();
  double* out = sums.as<double>();
  parallel_rows(team, sums.numel, kSquaresBlock, [=](std::int64_t b) {
    double sum = 0.0;
    for (std::int64_t i = b * kSquaresBlock; i < (b + 1) * kSquaresBlock; ++i) {
      sum += static_cast<double>(in[i]) * in[i];
    }
    out[b] = sum;
  });
}

void accumulate_sparsely(ThreadTeam& team, const SparseAccumulation& args) {
  const float factor = factor_of(args), limit = args.limit, momentum = args.momentum;
  const float* gradient = args.gradient.as<float>();
  float* velocity = args.velocity ? args.velocity.as<float>() : nullptr;
  float* error = args.error.as<float>();
  parallel_blocks(team, args.gradient.numel, [=](std::int64_t first, int count) {
    for (std::int64_t i = first; i < first + count; ++i) {
      float g = gradient[i] * factor;
      if (limit > 0.0f && std::isfinite(g)) g = std::clamp(g, -limit, limit);
      if (velocity != nullptr) g = velocity[i] = momentum * velocity[i] + g;
      error[i] = error[i] + g;
    }
  });
}

void choose_largest(const SparseRules& rules, const float* chunk, std::int64_t numel,
                    std::int64_t first, SparseEntry* entries) {
  const std::int64_t wanted = num_chosen(rules.ratio, numel);
  const auto is_finite = [](float x) { return std::isfinite(x); };
  if (!std::all_of(chunk, chunk + numel, is_finite)) {
    return choose(chunk, numel, first, wanted, entries, [](float x) { return !std::isfinite(x); });
  }
  const std::int64_t num_samples =
      std::min(numel, std::max(num_chosen(rules.sample_ratio, numel),
                               static_cast<std::int64_t>(std::ceil(2.0 / rules.ratio))));
  float threshold = threshold_of(rules, chunk, numel, num_samples);
  const auto reaches = [&](float x) { return std::abs(x) >= threshold && x != 0.0f; };
  const auto k = static_cast<double>(wanted);
  for (int i = 0; num_samples < numel && threshold > 0.0f && i < rules.max_adaptations; ++i) {
    const auto count = static_cast<double>(std::count_if(chunk, chunk + numel, reaches));
    if (count > static_cast<double>(rules.upper_bound) * k) {
      threshold *= rules.upper_bound;
    } else if (count < static_cast<double>(rules.lower_bound) * k) {
      threshold *= rules.lower_bound;
    } else {
      break;
    }
  }
  choose(chunk, numel, first, wanted, entries, reaches);
}

void add_entries(const SparseEntry* entries, std::int64_t count, std::int64_t first, Tensor out) {
  float* to = out.as<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(entries[i].index) - first;
    if (entries[i].index == SparseEntry::kNone || at < 0 || at >= out.numel) continue;
    to[at] += entries[i].value;
  }
}

void zero_entries(const SparseEntry* entries, std::int64_t count, std::int64_t first, Tensor x) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(entries[i].index) - first;
    if (entries[i].index == SparseEntry::kNone || at < 0 || at >= x.numel) continue;
    x.as<float>()[at] = 0.0f;
  }
}

}  // namespace sherd::kernels::cpu
