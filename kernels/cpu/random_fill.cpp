#include <cmath>
#include <numbers>

#include "kernels/cpu/pointwise.h"
#include "kernels/pointwise.h"

namespace sherd::kernels::cpu {
namespace {

/// Box & Muller 1958. The 1 is added so that the logarithm never sees 0.
double normal(std::uint32_t a, std::uint32_t b) {
  constexpr double kScale = 1.0 / 4294967296.0;
  const double radius = std::sqrt(-2.0 * std::log((a + 1.0) * kScale));
  return radius * std::cos(2.0 * std::numbers::pi * (b * kScale));
}

}  // namespace

void fill_normal(ThreadTeam& team, Tensor out, const RandomAddress& address,
                 std::int64_t first_element, float mean, float stddev) {
  constexpr int kNumbers = kBlock / 2;  // two words each
  auto* y = out.as<float>();
  parallel_blocks(team, out.numel, [&](std::int64_t first, int count) {
    for (int done = 0; done < count; done += kNumbers) {
      const int numbers = std::min(kNumbers, count - done);
      WordScratch scratch;
      const std::uint32_t* word =
          random_words(address, 2 * (first_element + first + done), 2 * numbers, scratch);
      for (int i = 0; i < numbers; ++i) {
        const double z = normal(word[2 * i], word[2 * i + 1]);
        y[first + done + i] = static_cast<float>(mean + static_cast<double>(stddev) * z);
      }
    }
  });
}

void fill_uniform(ThreadTeam& team, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound) {
  auto* y = out.as<float>();
  parallel_blocks(team, out.numel, [&](std::int64_t first, int count) {
    WordScratch scratch;
    const std::uint32_t* word = random_words(address, first_element + first, count, scratch);
    for (int i = 0; i < count; ++i) y[first + i] = uniform_number(word[i], bound);
  });
}

}  // namespace sherd::kernels::cpu
