#include "engine/generate/token_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/philox.h"

namespace sherd::engine {
namespace {

constexpr std::uint32_t kSamplingStep = 0xfffffffeu;  // no training step is numbered so

struct Candidate {
  std::int32_t id;
  double weight;  // exp((logit - the greatest) / temperature)
};

// The tokens that top_k leaves; with top_k or top_p the likeliest first.
std::vector<std::int32_t> likeliest_tokens(std::span<const float> logits,
                                           const SamplingOptions& options) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const bool cuts = options.top_k > 0 && options.top_k < static_cast<std::int64_t>(ids.size());
  if (!cuts && options.top_p >= 1.0) return ids;
  const auto end = cuts ? ids.begin() + options.top_k : ids.end();
  std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.erase(end, ids.end());
  return ids;
}

double total_of(const std::vector<Candidate>& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

// Leaves the fewest, from the front, whose weights reach the share p of all.
void keep_share(std::vector<Candidate>& candidates, double p) {
  if (p >= 1.0) return;
  const double wanted = p * total_of(candidates);
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || sum < wanted)) sum += candidates[kept++].weight;
  candidates.resize(kept);
}

}  // namespace

std::int32_t likeliest(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  }
  return static_cast<std::int32_t>(best);
}

std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, double u) {
  const std::int32_t best = likeliest(logits);
  if (options.temperature == 0.0 || options.top_k == 1) return best;
  std::vector<Candidate> candidates;
  for (const std::int32_t id : likeliest_tokens(logits, options)) {
    const double above = static_cast<double>(logits[id]) - logits[best];
    const double weight = std::exp(above / options.temperature);
    if (weight > 0.0) candidates.push_back({id, weight});
  }
  keep_share(candidates, options.top_p);
  double left = u * total_of(candidates);
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0.0) return candidate.id;
  }
  return candidates.empty() ? best : candidates.back().id;
}

double uniform_draw(std::uint64_t seed, std::int64_t draw) {
  const auto block =
      kernels::random_block({seed, kSamplingStep, 0}, static_cast<std::uint64_t>(draw));
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(block.word[0]) << 32 | block.word[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  const double greatest = logits[likeliest(logits)];
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - greatest);
  return logits[token] - greatest - std::log(sum);
}

}  // namespace sherd::engine
