/// Limits on rendering a template: steps, memory and depth are counted. A template comes with a
/// model, so a hostile one may try to use all time or memory. Rendering then ends with an error
/// message, and the same template and conversation do so on every machine.
///
///   steps   each expression or statement evaluated, each element visited or compared, each 64
///           bytes of text copied or searched
///   bytes   memory held by values made in this rendering and by texts under construction
///   depth   nesting of expressions, blocks and calls, and of values within values
///
/// A rendering's Budget counts for its thread. Without a Budget nothing is counted, so values can
/// be made outside a rendering.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sherd::templates {

struct Dict;

/// An error during evaluation, without its place; the evaluator adds the place.
struct Problem {
  std::string text;
};
template <class... Args>
[[noreturn]] void throw_problem(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem{fmt::format(format, std::forward<Args>(args)...)};
}

struct Limits {
  std::int64_t steps = 100'000'000;
  std::int64_t bytes = std::int64_t{512} << 20;
  int depth = 1000;
};
inline constexpr std::size_t kMostSourceBytes = std::size_t{2} << 20;
inline constexpr std::size_t kMostTextBytes = std::size_t{64}
                                              << 20;  ///< of any text, also the result
inline constexpr int kMostNested =
    400;  ///< nesting of lists and dictionaries; height of expressions

/// Usage of the limits; bytes and depth are peaks.
struct Used {
  std::int64_t steps = 0, bytes = 0;
  int depth = 0;
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), left_(limits.steps * kParts) {
    before_ = std::exchange(current_, this);
  }
  /// Empties the namespaces, which may hold each other in a ring or a chain.
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  static Budget* current() { return current_; }
  Used used() const;
  /// Keeps the namespace until the end of the rendering, so that it isn't destroyed earlier.
  void keep(std::shared_ptr<Dict> name_space) { namespaces_.push_back(std::move(name_space)); }

 private:
  friend void count_steps(std::size_t);
  friend void count_text(std::size_t);
  friend void expect_bytes(std::size_t);
  friend class Held;
  friend class Deeper;
  static constexpr std::int64_t kParts = 64;  ///< parts of a step; `left_` counts parts
  void spend(std::size_t parts) {
    left_ -= static_cast<std::int64_t>(parts);
    if (left_ < 0) out_of_steps();
  }
  [[noreturn]] void out_of_steps() const;
  [[noreturn]] void out_of_bytes() const;
  [[noreturn]] void out_of_depth() const;

  static inline constinit thread_local Budget* current_ = nullptr;
  Budget* before_ = nullptr;
  Limits limits_;
  std::int64_t left_;
  std::int64_t bytes_ = 0, most_bytes_ = 0;
  int depth_ = 0, most_depth_ = 0;
  std::vector<std::shared_ptr<Dict>> namespaces_;
};

/// Errors of all functions below   Problem that names the limit

inline void count_steps(std::size_t steps = 1) {
  if (Budget* budget = Budget::current()) budget->spend(steps * Budget::kParts);
}
/// Counts text that is copied or searched.
inline void count_text(std::size_t bytes) {
  if (Budget* budget = Budget::current()) budget->spend(bytes + 8);
}
/// Checks, before an allocation, that `bytes` more are within the limit.
inline void expect_bytes(std::size_t bytes) {
  const Budget* budget = Budget::current();
  if (budget && static_cast<std::int64_t>(bytes) > budget->limits_.bytes - budget->bytes_) {
    budget->out_of_bytes();
  }
}
/// Checks the size that a text will have.
inline void expect_text(std::size_t bytes) {
  if (bytes > kMostTextBytes && Budget::current()) {
    throw_problem("the text grows beyond {} bytes", kMostTextBytes);
  }
}

/// Counts bytes as held during this object's lifetime. A copy holds nothing.
class Held {
 public:
  Held() = default;
  explicit Held(std::size_t bytes) { set(bytes); }
  Held(const Held&) {}
  Held(Held&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (budget_) budget_->bytes_ -= bytes_;
  }
  /// Sets the number of bytes held.
  void set(std::size_t bytes);
  void add(std::size_t bytes) { set(static_cast<std::size_t>(bytes_) + bytes); }

 private:
  Budget* budget_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// One more level of depth during this object's lifetime.
class Deeper {
 public:
  Deeper() : budget_(Budget::current()) {
    if (!budget_) return;
    if (budget_->depth_ >= budget_->limits_.depth) budget_->out_of_depth();
    budget_->most_depth_ = std::max(budget_->most_depth_, ++budget_->depth_);
  }
  ~Deeper() {
    if (budget_) --budget_->depth_;
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Budget* budget_;
};

/// Text for a message: one short line.
std::string for_message(const std::string& text);

}  // namespace sherd::templates
