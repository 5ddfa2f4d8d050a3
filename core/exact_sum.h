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

/// Adds squares of f32 numbers to an exact sum, fast where there are many; they are in it when this is destroyed.
///
/// Numbers whose exponents are near the largest of a block, which most are, are squared in f64. Each square, of 48 bits, is
/// split at a fixed place (after Demmel & Nguyen 2015), and the two parts have a sum each, which no addition rounds:
/// with squares below 2^T,
///
///   above    multiples of 2^(T - 37), up to 2^16 of them: below 2^(T + 16)
///   below    of at most 2^(T - 38), multiples of 2^(T - 74): below 2^(T - 22)
///
/// The others are added as whole numbers by their exponents.
class ExactSquares {
 public:
  explicit ExactSquares(ExactSum& sum) : sum_(sum) {}
  ~ExactSquares() { flush(); }
  ExactSquares(const ExactSquares&) = delete;
  ExactSquares& operator=(const ExactSquares&) = delete;

  void add(const float* values, std::int64_t count);

 private:
  void add_block(const float* values, int count);
  void add_one(float value);
  void take_exponents_up_to(int top);
  void flush();

  ExactSum& sum_;
  static constexpr std::int64_t kMost = 65'536;
  std::int64_t room_ = kMost;  // squares that can still be added without an overflow
  int top_ = -1;  // the largest exponent, as an f32 stores it, that the two sums take; -1: none yet
  std::uint32_t least_ = 0;  // the smallest number that they take, as bits
  double split_ = 0.0;       // of this size, an f64's last bit is worth 2^(T - 37)
  double above_ = 0.0, below_ = 0.0;
  bool has_others_ = false;
  std::uint64_t by_exponent_[256] = {};
};

}  // namespace sherd
