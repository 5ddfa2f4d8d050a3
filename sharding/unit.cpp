#include "sharding/unit.h"

#include "kernels/pointwise.h"

namespace sherd::sharding {

UnitState::UnitState(UnitSpec spec, const Placement& placement, const Precision& precision,
                     const Rank& rank)
    : spec_(std::move(spec)),
      placement_(placement),
      precision_(precision),
      layout_(spec_, rank.world_size),
      rank_(rank.rank) {
  if (placement_.optimizer_sharded) {
    updated_slices_ = {rank_};
  } else {
    for (int owner = 0; owner < rank.world_size; ++owner) updated_slices_.push_back(owner);
  }
  const bool low_precision = precision_.parameters != DType::kF32;
  if (!placement_.parameters_sharded) {
    resident_ = rank.memory->acquire(
        {name() + ".parameters", Category::kParameters, precision_.parameters, layout_.numel()});
  }
  if (low_precision || placement_.parameters_sharded) {
    const std::int64_t numel =
        placement_.optimizer_sharded ? layout_.slice_numel() : layout_.numel();
    master_ = rank.memory->acquire({name() + ".master",
                                    low_precision ? Category::kMaster : Category::kParameters,
                                    DType::kF32, numel});
  }
  gradients_ = rank.memory->acquire(
      {name() + ".gradients", Category::kGradients, precision_.accumulate,
       placement_.gradients_sharded ? layout_.slice_numel() : layout_.numel()});
}

Tensor UnitState::master(int owner) const {
  CHECK(!placement_.optimizer_sharded || owner == rank_, "rank {} asked for slice {} of {}", rank_,
        owner, name());
  const Tensor& whole = master_ ? master_.tensor() : resident_.tensor();
  return whole.numel == layout_.slice_numel() ? whole : layout_.slice(whole, owner);
}

Tensor UnitState::gradient(int owner) const {
  CHECK(!placement_.gradients_sharded || owner == rank_, "rank {} asked for gradient {} of {}",
        rank_, owner, name());
  return placement_.gradients_sharded ? gradients_.tensor()
                                      : layout_.slice(gradients_.tensor(), owner);
}

void UnitState::refresh_resident(Stream& stream, int owner) const {
  if (!master_ || !resident_) return;
  kernels::cast(stream, master(owner), layout_.slice(resident_.tensor(), owner));
}

}  // namespace sherd::sharding
