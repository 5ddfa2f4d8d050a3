/// What a parameter is before anyone holds it: a name, a shape, how it starts.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace sherd {

/// A tensor starts as normal(mean, stddev) by global element index, or as a constant (stddev 0).
struct InitialValue {
  float mean = 0.0f;
  float stddev = 0.0f;
};

struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;  ///< row-major
  InitialValue initial;
  /// Position in the model's parameter table: the random address of its initial values, so that
  /// they depend neither on units nor on ranks.
  std::uint32_t index = 0;
  /// Rows of the matrices that are stacked in this one (query, key and value, say); empty: it is
  /// one. What works on matrices as such (Muon) takes them apart.
  std::vector<std::int64_t> matrix_rows{};

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// Units of one class share slots, which are as large as the largest unit of the class.
enum class UnitClass { kEdge, kBlock };

/// Parameters that are gathered and released together.
struct UnitSpec {
  std::string name;
  UnitClass unit_class = UnitClass::kBlock;
  std::vector<ParameterSpec> parameters;
};

}  // namespace sherd
