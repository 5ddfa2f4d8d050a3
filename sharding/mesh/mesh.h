/// The ranks of a world as a grid with named axes. Only arithmetic: no communicator, no memory.
///
///   axis        what ranks along it divide among themselves
///   pipeline    the layers
///   replicate   the batch; each holds the whole ZeRO state (hybrid sharding)
///   expert      the batch and the ZeRO state; and the experts of a layer
///   shard       the batch and the ZeRO state
///   context     the sequence, and the ZeRO state
///   tensor      the matrices inside a layer
///
/// Axes are ordered from the outermost to the innermost, which varies fastest:
///
///   rank = ((c_0 * d_1 + c_1) * d_2 + c_2) ...        c_i coordinate, d_i degree of axis i
///
/// A *group* along a set of axes is all ranks that agree in every other coordinate. Groups along
/// the same axes divide the world into equal parts. Names that the mesh doesn't have are axes of
/// degree 1, so code may name every axis whether or not a run uses it.
///
/// *Owners* are further ranks after those of the grid, the *workers* (docs/parameter_server.md). The
/// axis `owner` names them, in no other way than these:
///
///   group along         of a worker            of an owner
///   grid axes           as above               itself
///   owner               itself                 all owners
///   owner and others    the whole world        the whole world
///
/// Errors   a rank outside of the world, a degree below 1, a name twice: our bug (SHERD_CHECK).
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::sharding {

inline constexpr std::string_view kPipelineAxis = "pipeline";
inline constexpr std::string_view kReplicateAxis = "replicate";
inline constexpr std::string_view kExpertAxis = "expert";
inline constexpr std::string_view kShardAxis = "shard";
inline constexpr std::string_view kContextAxis = "context";
inline constexpr std::string_view kTensorAxis = "tensor";
inline constexpr std::string_view kOwnerAxis = "owner";

using AxisSet = std::set<std::string, std::less<>>;

/// Axes along which ranks have different rows of the batch.
const AxisSet& data_axes();
/// Axes along which ranks have different tokens: the data axes, and context.
const AxisSet& token_axes();
/// expert, shard and context: axes along which ranks share parameters, gradients and optimizer
/// state. These ranks form the ZeRO group. (That of experts lacks the expert axis.)
const AxisSet& zero_axes();

struct MeshAxis {
  std::string name;
  int degree = 1;
  bool operator==(const MeshAxis&) const = default;
};

class Mesh {
 public:
  /// A world of one rank.
  Mesh() = default;
  explicit Mesh(std::vector<MeshAxis> axes, int num_owners = 0);
  /// Data parallelism over `world_size` ranks that share the ZeRO state.
  static Mesh sharded(int world_size);

  int world_size() const { return world_size_; }
  int num_workers() const { return world_size_ - num_owners_; }
  int num_owners() const { return num_owners_; }
  bool is_owner(int rank) const { return rank >= num_workers(); }
  const std::vector<MeshAxis>& axes() const { return axes_; }  ///< of the grid
  AxisSet all_axes() const;                                    ///< and that of owners
  /// Every axis of the grid except these.
  AxisSet other_axes(const AxisSet& axes) const;

  int degree(std::string_view axis) const;
  /// Number of ranks in a group along `axes`: one that isn't a rank itself.
  int degree(const AxisSet& axes) const;
  int coordinate(int rank, std::string_view axis) const;

  /// The ranks of `rank`'s group along `axes`, ascending.
  std::vector<int> group(int rank, const AxisSet& axes) const;
  /// The rank's index in that list: the number that its coordinates along `axes` form.
  int index_in_group(int rank, const AxisSet& axes) const;
  /// Whether the rank is the first of its group along `axes`.
  bool is_first(int rank, const AxisSet& axes) const { return index_in_group(rank, axes) == 0; }

  /// "replicate 2 x shard 4"; axes of degree 1 are left out.
  std::string text() const;

  bool operator==(const Mesh&) const = default;

 private:
  int stride(std::size_t axis) const;
  bool reaches_owners(const AxisSet& axes) const;

  std::vector<MeshAxis> axes_;
  int num_owners_ = 0;
  int world_size_ = 1;
};

}  // namespace sherd::sharding
