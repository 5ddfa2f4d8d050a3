#include "core/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace sherd {
namespace {

// Exponent of the lowest digit's unit: twice that of the smallest f32.
constexpr int kLowest = -298;
constexpr int kMostBeforeCarry = 1 << 29;

// How an f32 is stored.
constexpr int kNotFinite = 255;  // exponent of infinity and NaN
constexpr int kBias = 127, kMantissaBits = 23;
constexpr std::uint32_t kMagnitude = 0x7fffffffu;

constexpr std::int64_t kBlock = 256;
constexpr int kExponents = 13;  // below the largest one, of numbers whose squares are split
constexpr int kFarBelow = 4;    // a block that lies lower has too few of these left

}  // namespace

void ExactSum::add_scaled(bool negative, std::uint64_t magnitude, int exponent) {
  const int position = exponent - kLowest;
  SHERD_CHECK(position >= 0 && position / 32 + 2 < kDigits, "a number times 2^{} in an exact sum",
              exponent);
  if (++num_added_ >= kMostBeforeCarry) carry();
  const Wide shifted = static_cast<Wide>(magnitude) << position % 32;
  for (int digit = 0; digit < 3; ++digit) {
    const auto part = static_cast<std::int64_t>(shifted >> 32 * digit & 0xffffffffu);
    digits_[static_cast<std::size_t>(position / 32 + digit)] += negative ? -part : part;
  }
}

// Every digit but the highest, which has the sign, becomes one of 0 to 2^32 - 1.
void ExactSum::carry() {
  num_added_ = 0;
  for (int i = 0; i + 1 < kDigits; ++i) {
    const auto digit = static_cast<std::size_t>(i);
    digits_[digit + 1] += digits_[digit] >> 32;
    digits_[digit] &= 0xffffffff;
  }
}

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    not_finite_ += value;
  } else if (value != 0.0) {
    int exponent = 0;
    double mantissa = std::ldexp(std::frexp(std::fabs(value), &exponent), 53);
    exponent -= 53;
    for (; exponent < kLowest; ++exponent) mantissa *= 0.5;  // exact: a multiple of the lowest unit
    add_scaled(value < 0.0, static_cast<std::uint64_t>(mantissa), exponent);
  }
}

void ExactSum::add(const float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) add(static_cast<double>(values[i]));
}

void ExactSum::add(std::span<const double> numbers) {
  SHERD_CHECK(std::ssize(numbers) == kNumbers, "an exact sum of {} numbers", numbers.size());
  carry();
  for (std::size_t i = 0; i < kDigits; ++i) digits_[i] += static_cast<std::int64_t>(numbers[i]);
  num_added_ = 1;
  add(numbers[kDigits]);
}

ExactSum::Numbers ExactSum::numbers() const {
  ExactSum carried = *this;
  carried.carry();
  Numbers numbers{};
  for (std::size_t i = 0; i < kDigits; ++i) numbers[i] = static_cast<double>(carried.digits_[i]);
  numbers[kDigits] = not_finite_;
  return numbers;
}

double ExactSum::value() const {
  if (not_finite_ != 0.0 || std::isnan(not_finite_)) return not_finite_;
  ExactSum magnitude = *this;
  magnitude.carry();
  const bool negative = magnitude.digits_[kDigits - 1] < 0;
  if (negative) {
    for (std::int64_t& digit : magnitude.digits_) digit = -digit;
    magnitude.carry();
  }
  int highest = kDigits - 1;
  while (highest > 2 && magnitude.digits_[static_cast<std::size_t>(highest)] == 0) --highest;
  // Three digits hold more than 64 bits, unless there are no more. Lower digits only show that
  // there is more.
  Wide top = 0;
  for (int i = highest; i > highest - 3; --i) {
    top = top << 32 | static_cast<std::uint64_t>(magnitude.digits_[static_cast<std::size_t>(i)]);
  }
  bool more = false;
  for (int i = 0; i + 2 < highest; ++i) more |= magnitude.digits_[static_cast<std::size_t>(i)] != 0;
  int exponent = kLowest + 32 * (highest - 2);
  for (; top >> 64 != 0; top >>= 1, ++exponent) more |= (top & 1u) != 0;
  const double rounded =
      std::ldexp(static_cast<double>(static_cast<std::uint64_t>(top) | (more ? 1u : 0u)), exponent);
  return negative ? -rounded : rounded;
}

void ExactSquares::add(const float* values, std::int64_t count) {
  while (count > 0) {
    if (room_ == 0) flush();
    const auto now = static_cast<int>(std::min({room_, count, kBlock}));
    add_block(values, now);
    values += now;
    count -= now;
    room_ -= now;
  }
}

void ExactSquares::add_block(const float* values, int count) {
  std::uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
  if (most == 0) return;
  const auto top = static_cast<int>(most >> kMantissaBits);
  if (top == kNotFinite) {
    for (int i = 0; i < count; ++i) add_one(values[i]);
    return;
  }
  if (top > top_ || top + kFarBelow < top_) take_exponents_up_to(top + 1);
  const std::uint32_t least = least_;
  const double split = split_;
  double above = 0.0, below = 0.0;
  int others = 0;
#pragma omp simd reduction(+ : above, below, others)
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & kMagnitude;
    const double value = magnitude >= least ? static_cast<double>(values[i]) : 0.0;
    const double upper = std::fma(value, value, split) - split;
    above += upper;
    below += std::fma(value, value, -upper);  // what is left, not rounded
    others += magnitude < least ? 1 : 0;
  }
  above_ += above;
  below_ += below;
  for (int i = 0; others > 0 && i < count; ++i) {
    if ((std::bit_cast<std::uint32_t>(values[i]) & kMagnitude) < least) add_one(values[i]);
  }
}

void ExactSquares::take_exponents_up_to(int top) {
  flush();
  top_ = std::min(top, kNotFinite - 1);
  least_ = static_cast<std::uint32_t>(std::max(1, top_ - kExponents)) << kMantissaBits;
  split_ = std::ldexp(1.0, 2 * (top_ - kBias) + 2 + 15);
}

// 2^16 squares of 24-bit numbers fit into 64 bits.
void ExactSquares::add_one(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = bits >> kMantissaBits & 255u;
  const std::uint64_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
  by_exponent_[exponent] += mantissa * mantissa;
  has_others_ = true;
}

void ExactSquares::flush() {
  sum_.add(std::exchange(above_, 0.0));
  sum_.add(std::exchange(below_, 0.0));
  room_ = kMost;
  if (!std::exchange(has_others_, false)) return;
  for (int exponent = 0; exponent <= kNotFinite; ++exponent) {
    const std::uint64_t sum = std::exchange(by_exponent_[exponent], 0);
    if (sum == 0) continue;
    if (exponent == kNotFinite) {  // infinity's hidden bit was set, too
      sum_.not_finite_ += std::nan("");
    } else {
      sum_.add_scaled(false, sum, 2 * (std::max(exponent, 1) - 150));
    }
  }
}

}  // namespace sherd
