/// What a parameter is before anyone holds it: a name, a shape, how it starts.
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
  /// Of the ranks that hold copies, the one that counts it in norms and writes it to checkpoints.
  bool counts = true;
};

/// One rank's part of a parameter that is cut over ranks (engine/model/cut/tensor_cut.h).
struct ParameterCut {
  std::string name;
  Cut cut = Cut::kNone;
  std::vector<std::int64_t> shape;          ///< of the whole
  std::vector<std::int64_t> matrix_rows{};  ///< of the whole, as in ParameterSpec
  std::vector<HeldBox> held{};              ///< in the order in which the rank's parameter has them

  std::int64_t columns() const { return shape.size() > 1 ? shape[1] : 1; }
  std::vector<Box> boxes() const;
};

struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;  ///< row-major; of what a rank has, where it is cut
  InitialValue initial;
  /// Position in the model's parameter table: the random address of its initial values, so that
  /// they depend neither on units nor on ranks.
  std::uint32_t index = 0;
  /// Rows of the matrices that are stacked in this one (query, key and value, say); empty: it is
  /// one. What works on matrices as such (Muon) takes them apart.
  std::vector<std::int64_t> matrix_rows{};
  /// Where ranks have parts of it; without, this is the whole.
  std::optional<ParameterCut> cut{};

  /// The box in which element `element` of this rank's part lies, of whole parameters the only one.
  struct Place {
    Box box;
    bool counts = true;
    std::int64_t first = 0;  ///< element of the part with which the box begins
  };
  Place place_of(std::int64_t element) const;
  /// Which element of the whole it is, row-major.
  std::int64_t element_of_whole(std::int64_t element) const;

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// Where in a model a unit is.
enum class UnitRole { kEmbedding, kLayer, kHead };

/// Names a unit of a model, whichever ranks hold it. A layer has part 0, its block, and further parts where some
/// of its parameters are units of their own.
struct UnitId {
  UnitRole role = UnitRole::kLayer;
  int layer = 0;  ///< 0 outside of layers
  int part = 0;

  friend auto operator<=>(const UnitId&, const UnitId&) = default;
};

/// Units of one class share slots, which are as large as the largest unit of the class: the edges (embedding and
/// head), and for each part number the layers' units with that number.
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
