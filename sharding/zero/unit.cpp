#include "sharding/zero/unit.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/nf4.h"
#include "kernels/pointwise.h"
#include "sharding/zero/coded_gather.h"

namespace sherd::sharding {
namespace {

FlatLayout layout_of(const std::vector<ParameterSpec>& parameters, const Placement& placement,
                     const Mesh& mesh) {
  return FlatLayout({{}, UnitClass::kBlock, parameters}, mesh.degree(placement.group));
}

// Replicas with the same slice, which add it, or what has changed in it, in this many equal parts.
// Owners and workers cut the same buffer into different slices.
int copies_of_slices(const Placement& placement, const Mesh& mesh) {
  if (placement.role == Role::kOwner) return mesh.num_workers();
  if (placement.role == Role::kWorker) return mesh.num_owners();
  if (placement.replicas_apart) return mesh.degree(kReplicateAxis);
  return mesh.degree(replica_axes(placement)) * mesh.degree(placement.group) /
         mesh.degree(slice_axes(placement));
}

}  // namespace

UnitPlan::UnitPlan(UnitSpec spec_, const Placement& placement_, const Precision& precision_,
                   const Mesh& mesh, std::vector<ParameterSpec> frozen_,
                   std::vector<ParameterSpec> quantised_)
    : spec(std::move(spec_)),
      placement(placement_),
      precision(precision_),
      layout(spec, mesh.degree(slice_axes(placement)), copies_of_slices(placement, mesh)),
      num_parts(mesh.degree(placement.group)),
      frozen(std::move(frozen_)),
      frozen_layout(layout_of(frozen, placement, mesh)),
      quantised(std::move(quantised_)),
      quantised_layout(layout_of(quantised, placement, mesh)),
      num_replicas(mesh.degree(replica_axes(placement))),
      num_links(mesh.degree(placement.boxes)) {
  AxisSet with_replicas = replica_axes(placement);
  with_replicas.insert(placement.group.begin(), placement.group.end());
  for (const AxisSet* kind : {&placement.parameters, &placement.gradients, &placement.optimizer}) {
    SHERD_CHECK(kind->empty() || *kind == placement.group ||
                    (kind == &placement.optimizer && *kind == with_replicas),
                "{} is sharded over other axes than its group's", spec.name);
  }
}

std::vector<Tensor> UnitPlan::views(const Tensor& trained_full, const Tensor& frozen_full,
                                    const Tensor& quantised_full) const {
  std::vector<std::pair<std::uint32_t, Tensor>> views;
  const auto add = [&views](const std::vector<ParameterSpec>& parameters, const FlatLayout& flat,
                            const Tensor& full) {
    const std::vector<Tensor> parts =
        full ? flat.views(full) : std::vector<Tensor>(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      views.emplace_back(parameters[i].index, parts[i]);
    }
  };
  add(spec.parameters, layout, trained_full);
  add(frozen, frozen_layout, frozen_full);
  add(quantised, quantised_layout, quantised_full);
  std::ranges::sort(views, {}, &std::pair<std::uint32_t, Tensor>::first);
  std::vector<Tensor> in_order;
  for (const auto& [index, view] : views) in_order.push_back(view);
  return in_order;
}

std::vector<SliceRange> counted_ranges(const UnitPlan& unit) {
  std::vector<SliceRange> ranges;
  std::int64_t begin = 0;  // of what counts
  const auto leave_out = [&](std::int64_t first, std::int64_t count) {
    if (first > begin) ranges.push_back({begin, first - begin});
    begin = first + count;
  };
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (!parameter.cut) continue;
    std::int64_t position = unit.layout.offset(static_cast<int>(i));
    for (const auto& [box, counts] : parameter.cut->held) {
      if (!counts) leave_out(position, box.numel());
      position += box.numel();
    }
  }
  leave_out(unit.layout.numel(), 0);
  return ranges;
}

std::int64_t UnitPlan::quantised_slice_bytes() const {
  const std::int64_t elements = quantised_layout.slice_numel();
  return elements / 2 + elements / kernels::kNf4Block;
}

std::int64_t UnitPlan::first_range(int parameter) const {
  std::int64_t first = 0;
  for (int i = 0; i < parameter; ++i) {
    // Of the whole, where a rank has a part of it.
    const ParameterSpec& parameter = quantised[static_cast<std::size_t>(i)];
    const auto& shape = parameter.cut ? parameter.cut->shape : parameter.shape;
    first += kernels::nf4_ranges(shape[0] * shape[1]);
  }
  return first;
}

namespace {

// A worker's resident parameters are what owners publish; an owner's, what it publishes.
UnitBuffers with_owners(const UnitPlan& unit, UnitBuffers buffers) {
  const std::string& name = unit.spec.name;
  const Placement& placement = unit.placement;
  if (unit.is_workers() || unit.rounds_parameters()) {
    const bool whole = unit.is_workers() && !placement.parameters_sharded();
    buffers.resident = {name + ".parameters", Category::kParameters, unit.precision.parameters,
                        whole ? unit.layout.numel() : unit.part_numel()};
  }
  if (unit.is_owners() && placement.published_late) {
    buffers.published = {name + ".published", Category::kParameters, unit.precision.parameters,
                         unit.part_numel()};
  }
  if (unit.is_owners()) {
    buffers.fp32_parameters = {name + ".master",
                               unit.rounds_parameters() ? Category::kMaster : Category::kParameters,
                               DType::kF32, unit.updated_numel()};
  }
  if (placement.has_gradients && (unit.is_owners() || !placement.gradients_sharded())) {
    buffers.gradients = {name + ".gradients", Category::kGradients, unit.precision.accumulate,
                         unit.is_owners() ? unit.part_numel() : unit.layout.numel()};
  }
  return buffers;
}

}  // namespace

UnitBuffers unit_buffers(const UnitPlan& unit) {
  const std::string& name = unit.spec.name;
  const bool rounds = unit.rounds_parameters();
  UnitBuffers buffers;
  if (unit.has_frozen()) {
    buffers.frozen = {name + ".frozen", Category::kParameters, unit.precision.parameters,
                      unit.placement.parameters_sharded() ? unit.frozen_layout.slice_numel()
                                                          : unit.frozen_layout.numel()};
  }
  if (unit.has_quantised()) {
    const int slices = unit.placement.parameters_sharded() ? 1 : unit.quantised_layout.num_slices();
    buffers.quantised = {name + ".nf4", Category::kParameters, DType::kU8,
                         slices * unit.quantised_slice_bytes()};
    buffers.ranges = {name + ".nf4_ranges", Category::kParameters, DType::kF32,
                      unit.first_range(static_cast<int>(unit.quantised.size()))};
  }
  if (!unit.trains()) return buffers;
  if (unit.has_owners()) return with_owners(unit, std::move(buffers));
  if (unit.placement.parameters_sharded() && unit.divides_parts() && unit.gathers_blocks()) {
    buffers.coded = {name + ".coded", Category::kParameters, DType::kU8,
                     unit.slices_per_part() * gather_layout(unit).piece_bytes()};
  } else if (!unit.placement.parameters_sharded() || unit.divides_parts()) {
    buffers.resident = {
        name + ".parameters", Category::kParameters, unit.precision.parameters,
        unit.placement.parameters_sharded() ? unit.part_numel() : unit.layout.numel()};
  }
  if (rounds || !buffers.resident) {
    buffers.fp32_parameters = {name + ".master", rounds ? Category::kMaster : Category::kParameters,
                               DType::kF32, unit.updated_numel()};
    if (unit.fp32_disk_block > 0) {
      buffers.fp32_parameters->home = Home::kDisk;
      buffers.fp32_parameters->disk_block = unit.fp32_disk_block;
    }
  }
  if (unit.placement.has_gradients) {
    buffers.gradients = {
        name + ".gradients", Category::kGradients, unit.precision.accumulate,
        unit.placement.gradients_sharded() ? unit.part_numel() : unit.layout.numel()};
  }
  return buffers;
}

std::vector<BufferSpec> UnitBuffers::list() const {
  return present(
      {&resident, &coded, &fp32_parameters, &published, &gradients, &frozen, &quantised, &ranges});
}

UnitState::UnitState(UnitPlan plan, const Rank& rank)
    : plan_(std::move(plan)),
      own_slice_(slice_of(rank.mesh, rank.rank, plan_.placement)),
      first_of_copies_(sharding::contributes_slice(rank.mesh, rank.rank, plan_.placement)),
      first_replica_(first_of_copies_ &&
                     rank.mesh.is_first(rank.rank, replica_axes(plan_.placement)) &&
                     (!plan_.placement.replicas_apart ||
                      rank.mesh.coordinate(rank.rank, kReplicateAxis) == 0)),
      saved_range_(sharding::saved_range(rank.mesh, rank.rank, plan_.placement,
                                         plan_.layout.slice_numel())) {
  if (is_second_end()) saved_range_ = {};
  const std::int64_t begin = own_slice_ * layout().slice_numel();
  for (const SliceRange& range : sharding::counted_ranges(plan_)) {
    const std::int64_t first = std::max(range.first, begin);
    const std::int64_t end = std::min(range.first + range.count, begin + layout().slice_numel());
    if (first < end) counted_ranges_.push_back({first - begin, end - first});
  }
  const int num_slices = rank.mesh.degree(slice_axes(plan_.placement));
  SHERD_CHECK(plan_.layout.num_slices() == num_slices, "a unit planned for {} ranks, not {}",
              plan_.layout.num_slices(), num_slices);
  if (plan_.is_workers()) {
    updated_slices_ = {};
  } else if (placement().optimizer_sharded() && trains()) {
    updated_slices_ = {own_slice_};
  } else if (trains()) {
    for (int slice_index = 0; slice_index < num_slices; ++slice_index)
      updated_slices_.push_back(slice_index);
  }
  const UnitBuffers buffers = unit_buffers(plan_);
  resident_ = rank.acquire(buffers.resident);
  coded_ = rank.acquire(buffers.coded);
  fp32_parameters_ = rank.acquire(buffers.fp32_parameters);
  published_ = rank.acquire(buffers.published);
  gradients_ = rank.acquire(buffers.gradients);
  frozen_ = rank.acquire(buffers.frozen);
  quantised_ = rank.acquire(buffers.quantised);
  ranges_ = rank.acquire(buffers.ranges);
}

Tensor UnitState::fp32_slice(int slice_index) const {
  SHERD_CHECK(!placement().optimizer_sharded() || slice_index == own_slice_,
              "the holder of slice {} asked for slice {} of {}", own_slice_, slice_index, name());
  return slice_in(fp32_parameters_ ? fp32_parameters_.tensor() : resident_.tensor(), slice_index);
}

Tensor UnitState::slice_in(const Tensor& held, int slice_index) const {
  const std::int64_t numel = layout().slice_numel();
  if (held.numel == layout().numel()) return layout().slice(held, slice_index);
  return held.numel == numel ? held
                             : held.part(slice_index % plan_.slices_per_part() * numel, numel);
}

Tensor UnitState::resident_part() const {
  const Tensor& resident = resident_.tensor();
  return resident.numel == layout().numel() ? part_of(resident) : resident;
}

Tensor UnitState::gradient(int slice_index) const {
  SHERD_CHECK(!placement().gradients_sharded() || slice_index == own_slice_,
              "the holder of slice {} asked for gradient {} of {}", own_slice_, slice_index,
              name());
  return slice_in(gradients_.tensor(), slice_index);
}

std::vector<int> UnitState::frozen_slices() const {
  if (placement().parameters_sharded()) return {own_part()};
  std::vector<int> slices(static_cast<std::size_t>(plan_.frozen_layout.num_slices()));
  std::iota(slices.begin(), slices.end(), 0);
  return slices;
}

Tensor UnitState::frozen_slice(int slice_index) const {
  if (!placement().parameters_sharded()) {
    return plan_.frozen_layout.slice(frozen_.tensor(), slice_index);
  }
  SHERD_CHECK(slice_index == own_part(), "the holder of slice {} asked for frozen slice {} of {}",
              own_part(), slice_index, name());
  return frozen_.tensor();
}

Tensor UnitState::quantised_slice(int slice_index) const {
  const std::int64_t bytes = plan_.quantised_slice_bytes();
  if (!placement().parameters_sharded()) {
    return quantised_.tensor().part(slice_index * bytes, bytes);
  }
  SHERD_CHECK(slice_index == own_part(),
              "the holder of slice {} asked for quantised slice {} of {}", own_part(), slice_index,
              name());
  return quantised_.tensor();
}

Tensor UnitState::ranges(int parameter) const {
  const std::int64_t first = plan_.first_range(parameter);
  return ranges_.tensor().part(first, plan_.first_range(parameter + 1) - first);
}

QuantisedPiece quantised_piece(const Tensor& slice_bytes, const Piece& piece) {
  constexpr std::int64_t kBytesPerBlock = kernels::kNf4Block / 2 + 1;
  const std::int64_t blocks = slice_bytes.numel / kBytesPerBlock;
  const std::int64_t first = piece.position / kernels::kNf4Block;
  return {
      slice_bytes.part(piece.position / 2, (piece.count + 1) / 2),
      slice_bytes.part(blocks * kernels::kNf4Block / 2 + first, kernels::nf4_blocks(piece.count))};
}

Tensor UnitState::rounded_slice(int slice_index) const {
  if (!fp32_parameters_ || !resident_) return {};
  return slice_in(resident_.tensor(), slice_index);
}

std::vector<UnitPlan> plans_of(const std::vector<UnitState>& units) {
  std::vector<UnitPlan> plans;
  plans.reserve(units.size());
  for (const UnitState& unit : units) plans.push_back(unit.plan());
  return plans;
}

}  // namespace sherd::sharding
