/// The slices of all units that one rank updates, with the data that an update needs for each.
#pragma once

#include <functional>
#include <vector>

#include "kernels/update.h"
#include "optim/optimizer.h"

namespace sherd::optim {

/// One slice, or a part of it: its parameters, its gradient and its segments. A segment lies inside one parameter;
/// if that is split over ranks, inside one of its boxes; otherwise inside one of its matrices.
/// Segments are short enough that threads can share a slice. If random bits are drawn, each segment
/// is also consecutive in the whole tensor. With moments in 8 bits, a segment begins with a block of
/// 64 and may be in several boxes or matrices.
struct UpdatedSlice {
  int slice_index = 0;
  Tensor parameter;  ///< f32
  Tensor gradient;
  Tensor rounded;                  ///< the parameters as used in computation; may be empty
  std::int64_t first_element = 0;  ///< of this slice in the rank's moments for the unit
  std::vector<kernels::UpdateSegment> segments;
  /// The same segments by group (OptimizerOptions::group_of), each group's in order.
  struct Group {
    int group = -1;
    std::vector<kernels::UpdateSegment> segments{};
  };
  std::vector<Group> groups{};

  /// This slice's part of a buffer of `acquire_moments`.
  /// `elements`: of each number in it, 64 for scales.
  Tensor part_of(const Buffer& moments, std::int64_t elements = 1) const {
    return moments ? moments.tensor().part(first_element / elements, parameter.numel / elements)
                   : Tensor{};
  }
};

/// By unit: the slices that this rank updates. With `block`, each is cut after every `block`
/// elements of the unit's moments (optim/state_ring.h).
std::vector<std::vector<UpdatedSlice>> updated_slices(const std::vector<sharding::UnitState>& units,
                                                      const OptimizerOptions& options,
                                                      std::int64_t block = 0);

/// A buffer for one kind of moment, as large as the unit's slices that this rank updates. With
/// `block` it is on disk, in blocks for that number of the slices' elements.
BufferSpec moment_buffer(const sharding::UnitPlan& unit, const std::string& kind,
                         const MomentType& type, std::int64_t block = 0);
/// The `block` of a unit's moments.
using MomentBlock = std::function<std::int64_t(const sharding::UnitPlan&)>;
/// One buffer for each kind and each unit that has trained parameters, kind by kind. Without `block`
/// all are in memory.
std::vector<BufferSpec> moment_buffers(const sharding::ShardingPlan& plan,
                                       const std::vector<std::string>& kinds,
                                       const MomentType& type, const MomentBlock& block = nullptr);
/// The buffers of one kind, by unit; empty for units without trained parameters.
std::vector<Buffer> acquire_moments(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const std::string& kind, const MomentType& type,
                                    const MomentBlock& block = nullptr);
/// Adds a piece, or extends the last one if the piece continues it.
void add_moment_piece(MomentPiece piece, std::vector<MomentPiece>& pieces);
/// Adds the pieces of one kind of moment for a slice's `segments`. `moments` begins with the
/// slice's first element. `elements`: of each number; pieces are counted in numbers.
void add_moment_pieces(const UpdatedSlice& slice, const std::string& kind, const Tensor& moments,
                       std::vector<MomentPiece>& pieces, std::int64_t elements = 1);
/// The largest number of segments in any rank's slice of the unit.
std::int64_t most_segments(const sharding::UnitPlan& unit, const MomentType& moments);
/// The unit's parameter with this index in the model's table.
const ParameterSpec& parameter_at(const UnitSpec& unit, std::uint32_t index);

/// Arguments of every update kernel; the slice must outlive the call.
kernels::UpdateCommon common_of(const UpdatedSlice& slice, const UpdateStep& step,
                                const MomentType& moments);

}  // namespace sherd::optim
