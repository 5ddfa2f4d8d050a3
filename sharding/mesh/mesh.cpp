#include "sharding/mesh/mesh.h"

#include "core/error.h"

namespace sherd::sharding {

const AxisSet& data_axes() {
  static const AxisSet axes{std::string(kReplicateAxis), std::string(kExpertAxis),
                            std::string(kShardAxis)};
  return axes;
}

const AxisSet& token_axes() {
  static const AxisSet axes{std::string(kReplicateAxis), std::string(kExpertAxis),
                            std::string(kShardAxis), std::string(kContextAxis)};
  return axes;
}

const AxisSet& zero_axes() {
  static const AxisSet axes{std::string(kExpertAxis), std::string(kShardAxis),
                            std::string(kContextAxis)};
  return axes;
}

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  AxisSet names;
  for (const MeshAxis& axis : axes_) {
    SHERD_CHECK(axis.degree >= 1, "axis {} of degree {}", axis.name, axis.degree);
    SHERD_CHECK(names.insert(axis.name).second, "axis {} twice", axis.name);
    world_size_ *= axis.degree;
  }
}

Mesh Mesh::sharded(int world_size) {
  return Mesh({{std::string(kShardAxis), world_size}});
}

AxisSet Mesh::all_axes() const {
  AxisSet names;
  for (const MeshAxis& axis : axes_) names.insert(axis.name);
  return names;
}

AxisSet Mesh::other_axes(const AxisSet& axes) const {
  AxisSet names = all_axes();
  for (const std::string& name : axes) names.erase(name);
  return names;
}

// Ranks between neighbours along this axis.
int Mesh::stride(std::size_t axis) const {
  int stride = 1;
  for (std::size_t inner = axis + 1; inner < axes_.size(); ++inner) stride *= axes_[inner].degree;
  return stride;
}

int Mesh::degree(std::string_view axis) const {
  for (const MeshAxis& own : axes_) {
    if (own.name == axis) return own.degree;
  }
  return 1;
}

int Mesh::degree(const AxisSet& axes) const {
  int product = 1;
  for (const std::string& axis : axes) product *= degree(axis);
  return product;
}

int Mesh::coordinate(int rank, std::string_view axis) const {
  SHERD_CHECK(rank >= 0 && rank < world_size_, "rank {} in a world of {}", rank, world_size_);
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return rank / stride(i) % axes_[i].degree;
  }
  return 0;
}

std::vector<int> Mesh::group(int rank, const AxisSet& axes) const {
  std::vector<int> ranks = {rank};
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (!axes.contains(axes_[i].name)) continue;
    const int own = coordinate(rank, axes_[i].name);
    std::vector<int> wider;
    for (const int base : ranks) {
      for (int c = 0; c < axes_[i].degree; ++c) wider.push_back(base + (c - own) * stride(i));
    }
    ranks = std::move(wider);
  }
  return ranks;
}

int Mesh::index_in_group(int rank, const AxisSet& axes) const {
  int index = 0;
  for (const MeshAxis& axis : axes_) {
    if (axes.contains(axis.name)) index = index * axis.degree + coordinate(rank, axis.name);
  }
  return index;
}

std::string Mesh::text() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    if (axis.degree == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.degree);
  }
  return text.empty() ? "1 rank" : text;
}

}  // namespace sherd::sharding
