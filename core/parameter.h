/// A parameter's definition before any rank holds it: its name, shape and initial values.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/box.h"

namespace sherd {

/// A tensor starts as normal(mean, stddev) by global element index, or as a constant (stddev 0).
struct InitialValue {
  float mean = 0.0f;
  float stddev = 0.0f;
};

enum class Cut { kNone, kRows, kColumns };

/// A box of a parameter on one rank.
struct HeldBox {
  Box box;
  /// Among ranks that hold copies, one counts the box in norms and writes it to checkpoints.
  bool counts = true;
};

/// One rank's part of a parameter that is split over ranks (engine/model/cut/tensor_cut.h).
struct ParameterCut {
  std::string name;
  Cut cut = Cut::kNone;
  std::vector<std::int64_t> shape;          ///< of the whole parameter
  std::vector<std::int64_t> matrix_rows{};  ///< of the whole parameter, as in ParameterSpec
  std::vector<HeldBox> held{};              ///< in the order of the rank's part

  std::int64_t columns() const { return shape.size() > 1 ? shape[1] : 1; }
  std::vector<Box> boxes() const;
};

struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;  ///< row-major; of the rank's part if the parameter is split
  InitialValue initial;
  /// Position in the model's parameter table. Random initial values are addressed by it, so they
  /// depend neither on units nor on ranks.
  std::uint32_t index = 0;
  /// Rows of each matrix stacked in this parameter (query, key and value, for example); empty: it
  /// is one matrix. Code that works on matrices (Muon) separates them.
  std::vector<std::int64_t> matrix_rows{};
  /// Set if ranks have parts of it; otherwise this is the whole parameter.
  std::optional<ParameterCut> cut{};

  /// The box that contains element `element` of this rank's part; a whole parameter has one box.
  struct Place {
    Box box;
    bool counts = true;
    std::int64_t first = 0;  ///< element of the part at which the box begins
  };
  Place place_of(std::int64_t element) const;
  /// Its row-major index in the whole parameter.
  std::int64_t element_of_whole(std::int64_t element) const;

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// Where in a model a unit is.
enum class UnitRole { kEmbedding, kLayer, kHead };

/// Names a unit of a model, the same on every rank. Part 0 of a layer is its block. A layer has
/// further parts if some of its parameters are separate units.
struct UnitId {
  UnitRole role = UnitRole::kLayer;
  int layer = 0;  ///< 0 outside of layers
  int part = 0;

  friend auto operator<=>(const UnitId&, const UnitId&) = default;
};

/// Units of one class share slots, each as large as the largest unit of the class. The edges
/// (embedding and head) are one class. The layers' units form one class per part number.
enum class UnitClass : int { kEdge = 0, kBlock = 1 };

/// The class of the layers' parts `part`; part 0 is kBlock.
constexpr UnitClass layer_class(int part) {
  return static_cast<UnitClass>(static_cast<int>(UnitClass::kBlock) + part);
}
constexpr bool is_of_layers(UnitClass unit_class) {
  return unit_class != UnitClass::kEdge;
}
/// "edge", "block", and for the layers' other parts "part1", "part2", ...
std::string name_of(UnitClass unit_class);

/// Parameters that are gathered and released together.
struct UnitSpec {
  std::string name;
  UnitClass unit_class = UnitClass::kBlock;
  std::vector<ParameterSpec> parameters;
  UnitId id{};
};

}  // namespace sherd
