/// The slices of all units that one rank updates, with what an update needs to know of each.
#pragma once

#include <functional>
#include <vector>

#include "kernels/update.h"
#include "optim/optimizer.h"

namespace sherd::optim {

/// One slice: where its parameters and gradient are, and its segments, each inside one parameter (of one that
/// is cut over ranks: inside one of its boxes, else one of its matrices) and short enough that threads can share a
/// slice. Where random bits are drawn, each is consecutive in the whole tensor, too.
struct UpdatedSlice {
  int slice_index = 0;
  Tensor parameter;  ///< f32
  Tensor gradient;
  Tensor rounded;                  ///< the parameters as they are computed with; may be empty
  std::int64_t first_element = 0;  ///< of this slice in the rank's moments of the unit
  std::vector<kernels::UpdateSegment> segments;

  /// This slice's part of a buffer of `acquire_moments`.
  Tensor part_of(const Buffer& moments) const {
    return moments ? moments.tensor().part(first_element, parameter.numel) : Tensor{};
  }
};

/// By unit: the slices that this rank updates.
std::vector<std::vector<UpdatedSlice>> updated_slices(const std::vector<sharding::UnitState>& units,
                                                      const OptimizerOptions& options);

/// A buffer as large as the unit's slices that this rank updates, for one kind of moment.
BufferSpec moment_buffer(const sharding::UnitPlan& unit, const std::string& kind,
                         const MomentType& type);
/// One for each kind and unit that has something to train, kind by kind.
std::vector<BufferSpec> moment_buffers(const sharding::ShardingPlan& plan,
                                       const std::vector<std::string>& kinds,
                                       const MomentType& type);
/// Those of one kind, by unit; empty where there is nothing to train.
std::vector<Buffer> acquire_moments(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const std::string& kind, const MomentType& type);
/// Adds a piece, or extends the last one if the piece continues it.
void add_moment_piece(MomentPiece piece, std::vector<MomentPiece>& pieces);
/// Adds the pieces of one kind of moment that `segments` of a slice have in `moments`, which begins
/// with the slice's first element.
void add_moment_pieces(const UpdatedSlice& slice, const std::string& kind, const Tensor& moments,
                       std::vector<MomentPiece>& pieces);
/// No rank's slice of the unit has more segments.
std::int64_t most_segments(const sharding::UnitPlan& unit, const MomentType& moments);
/// The parameter of the unit that has this index in the model's table.
const ParameterSpec& parameter_at(const UnitSpec& unit, std::uint32_t index);

/// Arguments of every update kernel; the slice must outlive the call.
kernels::UpdateCommon common_of(const UpdatedSlice& slice, const UpdateStep& step,
                                const MomentType& moments);

}  // namespace sherd::optim
