/// An exact sum of floating-point numbers. The result doesn't depend on the order of additions or
/// on how the addends are divided. It is rounded once, when its value is read.
///
///   sum = sum over i of digit_i * 2^(32 i - 298)          (fixed point, 20 digits of 32 bits)
///
/// Fits squares of f32 (multiples of 2^-298, below 2^256), f32 numbers, and their sums in f64; up
/// to 2^60 addends. Norms and losses are added this way, so they don't depend on how ranks share
/// the work. After Kulisch's accumulator (Kulisch, Miranker 1981).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sherd {

class ExactSum {
 public:
  /// How tensors and exchanges store an exact sum: its digits as f64, then one f64 that is added to
  /// them. That one is 0, a non-finite value, or a sum that a GPU computed in f64.
  static constexpr int kNumbers = 21;
  using Numbers = std::array<double, kNumbers>;

  ExactSum() = default;
  explicit ExactSum(std::span<const double> numbers) { add(numbers); }

  /// `value` is finite and a multiple of 2^-298, or not finite. Then the sum isn't finite either.
  void add(double value);
  void add(const float* values, std::int64_t count);
  void add(const ExactSum& other) { add(other.numbers()); }
  /// Adds what `numbers` of another exact sum returned. [kNumbers]
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

  std::array<std::int64_t, kDigits> digits_{};  // 32 bits each, and pending carries
  int num_added_ = 0;                           // since the last carry
  double not_finite_ = 0.0;
};

/// Adds squares of f32 numbers to an exact sum, fast for many numbers. The sum contains them once
/// this object is destroyed.
///
/// Most numbers have exponents near the largest of their block. These are squared in f64. Each
/// 48-bit square is split at a fixed place (after Demmel & Nguyen 2015). The two parts have
/// separate sums, whose additions never round. With squares below 2^T:
///
///   above    multiples of 2^(T - 37), up to 2^16 of them: sum below 2^(T + 16)
///   below    at most 2^(T - 38) each, multiples of 2^(T - 74): sum below 2^(T - 22)
///
/// The other numbers are added as integers, by their exponents.
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
  int top_ = -1;  // largest exponent, as an f32 stores it, that the two sums accept; -1: none yet
  std::uint32_t least_ = 0;  // smallest number that they accept, as bits
  double split_ = 0.0;       // at this size, the last bit of an f64 is worth 2^(T - 37)
  double above_ = 0.0, below_ = 0.0;
  bool has_others_ = false;
  std::uint64_t by_exponent_[256] = {};
};

}  // namespace sherd
