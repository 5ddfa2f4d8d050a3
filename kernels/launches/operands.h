/// The operands of a call on a GPU: the tensors among its arguments, a `ConstTensor` to be read, a
/// `Tensor` to be written (core/tensor.h). They are found automatically in the arguments, in
/// structs member by member.
///
/// Set `tell_operands` to receive them. Tests on the emulated GPU do (tests/emulated_gpu/watch.h),
/// to compare what kernels access with their arguments.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/expert_rows.h"
#include "kernels/update.h"

namespace sherd::kernels {

struct Operand {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  bool written = false;
};
using Operands = std::vector<Operand>;

namespace operands {

template <class T>
inline constexpr bool is_list_of_numbers = false;
template <class T>
inline constexpr bool is_list_of_numbers<std::vector<T>> =
    std::is_arithmetic_v<T> || std::is_same_v<T, RowRange> || std::is_same_v<T, ExpertPiece>;
template <class T>
inline constexpr bool is_list_of_numbers<std::span<T>> =
    std::is_arithmetic_v<T> || std::is_same_v<std::remove_cv_t<T>, UpdateSegment>;

template <class T>
inline constexpr bool is_list_of_arguments = std::is_same_v<T, std::vector<ExpertAdapter>>;

struct Anything {
  template <class T>
  operator T() const;  // NOLINT: never defined
};
template <class T, std::size_t... I>
constexpr bool has_members(std::index_sequence<I...>) {
  return requires {
    T{(static_cast<void>(I), Anything{})...};
  };
}
/// The number of members of an aggregate, at most 19; 20 means too many.
template <class T, std::size_t N = 20>
constexpr std::size_t num_members() {
  if constexpr (N == 0 || has_members<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return num_members<T, N - 1>();
  }
}

template <class T>
void add(const T& argument, Operands& all);

template <class... Members>
void add_all(Operands& all, const Members&... members) {
  (add(members, all), ...);
}

template <class T>
void add_members(const T& x, Operands& all) {
  constexpr std::size_t kNumber = num_members<T>();
  static_assert(kNumber < 20, "more members than are looked at");
  if constexpr (kNumber == 1) {
    const auto& [a] = x;
    add_all(all, a);
  } else if constexpr (kNumber == 2) {
    const auto& [a, b] = x;
    add_all(all, a, b);
  } else if constexpr (kNumber == 3) {
    const auto& [a, b, c] = x;
    add_all(all, a, b, c);
  } else if constexpr (kNumber == 4) {
    const auto& [a, b, c, d] = x;
    add_all(all, a, b, c, d);
  } else if constexpr (kNumber == 5) {
    const auto& [a, b, c, d, e] = x;
    add_all(all, a, b, c, d, e);
  } else if constexpr (kNumber == 6) {
    const auto& [a, b, c, d, e, f] = x;
    add_all(all, a, b, c, d, e, f);
  } else if constexpr (kNumber == 7) {
    const auto& [a, b, c, d, e, f, g] = x;
    add_all(all, a, b, c, d, e, f, g);
  } else if constexpr (kNumber == 8) {
    const auto& [a, b, c, d, e, f, g, h] = x;
    add_all(all, a, b, c, d, e, f, g, h);
  } else if constexpr (kNumber == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = x;
    add_all(all, a, b, c, d, e, f, g, h, i);
  } else if constexpr (kNumber == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kNumber == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (kNumber == 12) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (kNumber == 13) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (kNumber == 14) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (kNumber == 15) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else if constexpr (kNumber == 16) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  } else if constexpr (kNumber == 17) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
  } else if constexpr (kNumber == 18) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r);
  } else if constexpr (kNumber == 19) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s] = x;
    add_all(all, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s);
  }
}

// Other rows may be on their way from other ranks meanwhile.
inline void add_ranges(const ExpertPack& pack, Operands& all) {
  add_all(all, pack.order, pack.x, pack.weights);
  const std::int64_t width = pack.shape.width;
  for (const RowRange& range : pack.ranges) {
    add_all(all, pack.out.part(range.first * width, range.count * width));
  }
}

template <class T>
void add(const T& argument, Operands& all) {
  if constexpr (std::is_same_v<T, ExpertPack>) {
    add_ranges(argument, all);
  } else if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, ConstTensor>) {
    if (argument) all.push_back({argument.data, argument.bytes(), std::is_same_v<T, Tensor>});
  } else if constexpr (is_list_of_arguments<T>) {
    for (const auto& one : argument) add(one, all);
  } else if constexpr (std::is_aggregate_v<T> && std::is_class_v<T>) {
    static_assert(num_members<T>() > 0 || std::is_empty_v<T>, "members that aren't seen");
    add_members(argument, all);
  } else {
    // Types without tensors; any other type must be searched, or be named here.
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T> || is_list_of_numbers<T>,
                  "a type that may hold tensors");
  }
}

}  // namespace operands

/// Called with the operands when a call begins, and with null when it ends. Calls nest.
inline void (*tell_operands)(const Operands* of_call) = nullptr;

class CallWithOperands {
 public:
  template <class... Arguments>
  explicit CallWithOperands(const Arguments&... arguments) {
    if (!tell_operands) return;
    Operands all;
    operands::add_all(all, arguments...);
    tell_operands(&all);
  }
  ~CallWithOperands() {
    if (tell_operands) tell_operands(nullptr);
  }
  CallWithOperands(const CallWithOperands&) = delete;
  CallWithOperands& operator=(const CallWithOperands&) = delete;
};

}  // namespace sherd::kernels
