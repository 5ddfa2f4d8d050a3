#include "kernels/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sherd::kernels {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

// Llama 3: short waves stay, long ones are stretched, those between are mixed.
double llama3(const RotaryFrequencies& rope, double frequency) {
  const double turns = as_double(rope.original_length) * frequency / kTwoPi;  // C / w
  const double low = rope.low_freq_factor, high = rope.high_freq_factor;
  if (turns > high) return frequency;
  if (turns < low) return frequency / rope.factor;
  const double t = (turns - low) / (high - low);
  return (1.0 - t) * frequency / rope.factor + t * frequency;
}

// YaRN: the index whose pair turns `turns` times in C positions.
double index_of_turns(const RotaryFrequencies& rope, double width, double turns) {
  return width * std::log(as_double(rope.original_length) / (turns * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

struct Ramp {
  double begin = 0.0, end = 0.0;
  double at(std::int64_t j) const {
    return std::clamp((as_double(j) - begin) / (end - begin), 0.0, 1.0);
  }
};

Ramp yarn_ramp(const RotaryFrequencies& rope, std::int64_t width) {
  Ramp ramp{index_of_turns(rope, as_double(width), rope.beta_fast),
            index_of_turns(rope, as_double(width), rope.beta_slow)};
  if (rope.truncate) ramp = {std::floor(ramp.begin), std::ceil(ramp.end)};
  ramp = {std::max(ramp.begin, 0.0), std::min(ramp.end, as_double(width - 1))};
  if (ramp.begin == ramp.end) ramp.end += 0.001;  // a step, as the reference has it
  return ramp;
}

}  // namespace

std::int64_t rotated_width(const RotaryFrequencies& frequencies, std::int64_t head_width) {
  return static_cast<std::int64_t>(as_double(head_width) * frequencies.fraction);
}

double fraction_of(std::int64_t rotated, std::int64_t head_width) {
  const double fraction = as_double(rotated) / as_double(head_width);
  const bool falls_short = rotated_width({.fraction = fraction}, head_width) < rotated;
  return falls_short ? std::nextafter(fraction, 1.0) : fraction;
}

std::vector<double> frequencies_of_pairs(const RotaryFrequencies& rope, std::int64_t head_width,
                                         std::int64_t positions) {
  const std::int64_t rotated = rotated_width(rope, head_width);
  SHERD_CHECK(head_width >= 2 && head_width % 2 == 0 && rotated % 2 == 0,
              "{} of a head of {} rotated", rotated, head_width);
  std::vector<double> frequencies(static_cast<std::size_t>(head_width / 2), 0.0);
  const auto& list = positions > rope.original_length ? rope.long_factors : rope.short_factors;
  SHERD_CHECK(rope.scaling != RotaryScaling::kLongrope || std::ssize(list) == rotated / 2,
              "{} factors for {} pairs", list.size(), rotated / 2);
  const Ramp ramp = rope.scaling == RotaryScaling::kYarn ? yarn_ramp(rope, rotated) : Ramp{};
  for (std::int64_t j = 0; j < rotated / 2; ++j) {
    const double plain = std::pow(rope.theta, -2.0 * as_double(j) / as_double(rotated));
    double& frequency = frequencies[static_cast<std::size_t>(j)];
    switch (rope.scaling) {
      case RotaryScaling::kNone:
        frequency = plain;
        break;
      case RotaryScaling::kLinear:
        frequency = plain / rope.factor;
        break;
      case RotaryScaling::kLlama3:
        frequency = llama3(rope, plain);
        break;
      case RotaryScaling::kYarn:
        frequency = plain / rope.factor * ramp.at(j) + plain * (1.0 - ramp.at(j));
        break;
      case RotaryScaling::kLongrope:
        frequency = plain / list[static_cast<std::size_t>(j)];
        break;
    }
  }
  return frequencies;
}

double rotary_factor(const RotaryFrequencies& rope) {
  const bool scaled = rope.scaling != RotaryScaling::kNone;
  if (scaled && rope.attention_factor > 0.0) return rope.attention_factor;
  if (rope.factor <= 1.0) return 1.0;
  if (rope.scaling == RotaryScaling::kYarn) return 0.1 * std::log(rope.factor) + 1.0;
  if (rope.scaling == RotaryScaling::kLongrope) {
    return std::sqrt(1.0 + std::log(rope.factor) / std::log(as_double(rope.original_length)));
  }
  return 1.0;
}

}  // namespace sherd::kernels
