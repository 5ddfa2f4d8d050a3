/// A sum of floating-point numbers that is exact: no order of additions, and no way of cutting the addends into
/// parts, changes a bit of it. It is rounded once, when it is asked for.
///
///   sum = sum over i of digit_i * 2^(32 i - 298)          (fixed point, 20 digits of 32 bits)
///
/// Fits squares of f32 (multiples of 2^-298, below 2^256), f32 and sums of them in f64, up to 2^60 of
/// them. Norms and losses are added this way, so that they don't follow how ranks share the work.
/// After Kulisch's accumulator (Kulisch, Miranker 1981).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sherd {

class ExactSum {
 public:
  /// What an exact sum is among tensors and exchanges: its digits as f64, then an f64 that is added to
  /// them: 0, or what isn't finite, or a sum that a GPU has made in f64.
  static constexpr int kNumbers = 21;
  using Numbers = std::array<double, kNumbers>;

  ExactSum() = default;
  explicit ExactSum(std::span<const double> numbers) { add(numbers); }

  /// value is finite and a multiple of 2^-298, or isn't finite: then neither is the sum.
  void add(double value);
  void add(const float* values, std::int64_t count);
  void add(const ExactSum& other) { add(other.numbers()); }
  /// What `numbers` of another one returned. [kNumbers]
  void add(std::span<const double> numbers);

  Numbers numbers() const;
  /// Rounded to nearest, ties to even. Not finite if an addend wasn't.
  double value() const;

 private:
  friend class ExactSquares;
  static constexpr int kDigits = kNumbers - 1;
  __extension__ using Wide = unsigned __int128;

  void add_scaled(bool negative, std::uint64_t magnitude, int exponent);
  void carry();

  std::array<std::int64_t, kDigits> digits_{};  // 32 bits each, and carries that wait
  int num_added_ = 0;                           // since the last carry
  double not_finite_ = 0.0;
};

/// Adds squares of f32 numbers to an exact sum, fast where there are many: by their exponents first, into
/// the sum when this is destroyed.
class ExactSquares {
 public:
  explicit ExactSquares(ExactSum& sum) : sum_(sum) {}
  ~ExactSquares() { flush(); }
  ExactSquares(const ExactSquares&) = delete;
  ExactSquares& operator=(const ExactSquares&) = delete;

  void add(const float* values, std::int64_t count);

 private:
  void flush();

  ExactSum& sum_;
  std::int64_t room_ = kMost;  // squares that can still be added without an overflow
  static constexpr std::int64_t kMost = 65'536;
  // Numbers of one tensor have few exponents, so four tables take turns: an addition needn't wait for the
  // one before.
  std::uint64_t by_exponent_[4][256] = {};
};

}  // namespace sherd
