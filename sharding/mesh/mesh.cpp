#include "sharding/mesh/mesh.h"

#include <algorithm>
#include <numeric>

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

Mesh::Mesh(std::vector<MeshAxis> axes, int num_owners)
    : axes_(std::move(axes)), num_owners_(num_owners) {
  SHERD_CHECK(num_owners >= 0, "{} owners", num_owners);
  AxisSet names;
  for (const MeshAxis& axis : axes_) {
    SHERD_CHECK(axis.degree >= 1, "axis {} of degree {}", axis.name, axis.degree);
    SHERD_CHECK(names.insert(axis.name).second, "axis {} twice", axis.name);
    world_size_ *= axis.degree;
  }
  world_size_ += num_owners;
}

Mesh Mesh::sharded(int world_size) {
  return Mesh({{std::string(kShardAxis), world_size}});
}

AxisSet Mesh::all_axes() const {
  AxisSet names;
  for (const MeshAxis& axis : axes_) names.insert(axis.name);
  if (num_owners_ > 0) names.insert(std::string(kOwnerAxis));
  return names;
}

AxisSet Mesh::other_axes(const AxisSet& axes) const {
  AxisSet names = all_axes();
  names.erase(std::string(kOwnerAxis));
  for (const std::string& name : axes) names.erase(name);
  return names;
}

// Along the owners' axis and others, a group is the whole world.
bool Mesh::reaches_owners(const AxisSet& axes) const {
  if (num_owners_ == 0 || !axes.contains(kOwnerAxis)) return false;
  const auto is_among = [&](const MeshAxis& axis) {
    return axis.degree == 1 || axes.contains(axis.name);
  };
  SHERD_CHECK(axes.size() == 1 || std::ranges::all_of(axes_, is_among),
              "a group of owners and some workers");
  return true;
}

// Ranks between neighbours along this axis.
int Mesh::stride(std::size_t axis) const {
  int stride = 1;
  for (std::size_t inner = axis + 1; inner < axes_.size(); ++inner) stride *= axes_[inner].degree;
  return stride;
}

int Mesh::degree(std::string_view axis) const {
  if (axis == kOwnerAxis) return std::max(num_owners_, 1);
  for (const MeshAxis& own : axes_) {
    if (own.name == axis) return own.degree;
  }
  return 1;
}

int Mesh::degree(const AxisSet& axes) const {
  if (reaches_owners(axes) && axes.size() > 1) return world_size_;
  int product = 1;
  for (const std::string& axis : axes) product *= degree(axis);
  return product;
}

int Mesh::coordinate(int rank, std::string_view axis) const {
  SHERD_CHECK(rank >= 0 && rank < world_size_, "rank {} in a world of {}", rank, world_size_);
  if (is_owner(rank)) return axis == kOwnerAxis ? rank - num_workers() : 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return rank / stride(i) % axes_[i].degree;
  }
  return 0;
}

std::vector<int> Mesh::group(int rank, const AxisSet& axes) const {
  std::vector<int> ranks = {rank};
  if (reaches_owners(axes) && (axes.size() > 1 || is_owner(rank))) {
    const int first = axes.size() > 1 ? 0 : num_workers();
    ranks.resize(static_cast<std::size_t>(world_size_ - first));
    std::iota(ranks.begin(), ranks.end(), first);
  }
  if (reaches_owners(axes) || is_owner(rank)) return ranks;
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
  if (reaches_owners(axes)) return axes.size() > 1 ? rank : coordinate(rank, kOwnerAxis);
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
  if (text.empty()) text = "1 rank";
  if (num_owners_ > 0) text += fmt::format(" + owner {}", num_owners_);
  return text;
}

}  // namespace sherd::sharding
