// What a reduction acquires and sends, before a run: reduction_buffers and gradient_traffic of
// gradient_reduction.h.

#include <algorithm>
#include <map>

#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/reduction_rules.h"

namespace sherd::sharding {
namespace {

// The units of a class, which share a pool of slots.
struct SlotClass {
  int gradients = 0;  // of a micro-step
  std::int64_t largest = 0;
  DType dtype = DType::kF32;
  bool at_boundary = false;
};

std::map<UnitClass, SlotClass> slot_classes(const std::vector<UnitPlan>& units,
                                            int num_micro_steps) {
  std::map<UnitClass, SlotClass> classes;
  for (const UnitPlan& unit : units) {
    if (!needs_slot(unit, num_micro_steps)) continue;
    SlotClass& pool = classes[unit.spec.unit_class];
    SHERD_CHECK(pool.gradients == 0 ||
                    (pool.dtype == unit.precision.reduce && pool.at_boundary == at_boundary(unit)),
                "{} shares gradient slots with units of another type or sync", unit.spec.name);
    pool.gradients += unit.num_links;
    pool.largest = std::max(pool.largest, unit.layout.numel());
    pool.dtype = unit.precision.reduce;
    pool.at_boundary = at_boundary(unit);
  }
  return classes;
}

// Calls for the ranks' micro-batches of every micro-step, each of which may have parts of several
// groups of the batch.
std::int64_t calls_of_groups(const UnitPlan& unit, std::int64_t in_every_step) {
  const std::int64_t ranks = unit.num_parts;
  const std::int64_t size = in_every_step * ranks / unit.placement.batch_groups;
  std::int64_t calls = 0;
  for (std::int64_t step = 0; step < in_every_step; ++step) {
    calls += ((step + 1) * ranks - 1) / size - step * ranks / size + 1;
  }
  return calls;
}

void add_group(Traffic& traffic, const UnitPlan& unit, std::int64_t in_every_step) {
  const std::int64_t reductions = at_boundary(unit) ? 1 : in_every_step;
  if (unit.reduces_blocks()) {
    // One exchange carries all ranks' micro-batches, whatever groups of the batch they are in.
    if (unit.num_parts == 1) return;
    return traffic.add("gradients", Collective::kAllToAll, DType::kU8,
                       reduction_layout(unit).bytes(), unit.group(), reductions);
  }
  const DType dtype = unit.precision.reduce;
  traffic.add("gradients", Collective::kReduceScatter, dtype, unit.layout.numel(), unit.group(),
              reductions);
  if (!in_groups(unit)) return;
  traffic.add_silent("gradients", Collective::kReduceScatter, dtype, unit.group(),
                     calls_of_groups(unit, in_every_step) - reductions);
}

void add_replicas(Traffic& traffic, const UnitPlan& unit) {
  if (unit.num_replicas == 1 || unit.compressed_sum) return;
  const DType dtype = unit.precision.accumulate;
  if (!unit.adds_replicas_in_blocks()) {
    return traffic.add("gradients",
                       unit.divides_parts() ? Collective::kReduceScatter : Collective::kAllReduce,
                       dtype, unit.part_numel(), unit.replicas());
  }
  traffic.add("gradients", Collective::kAllToAll, DType::kU8,
              replica_layout(unit).piece_bytes() * unit.num_replicas, unit.replicas());
  if (unit.divides_parts()) return;
  traffic.add("gradients", Collective::kAllGather, dtype, unit.part_numel(), unit.replicas());
}

}  // namespace

ReductionBuffers reduction_buffers(const std::vector<UnitPlan>& units, int num_micro_steps) {
  ReductionBuffers buffers;
  // The reductions of a micro-step end under the next one's forward. The head's gradient is formed
  // with the loss.
  const auto phases_of = [&](bool boundary, Phases within) {
    return num_micro_steps > 1 && !boundary ? kForwardToBackward : within;
  };
  for (const auto& [unit_class, pool] : slot_classes(units, num_micro_steps)) {
    const bool block = is_of_layers(unit_class);
    // At the boundary a slot is drained by the compute stream itself, so one is enough.
    const int num_slots = block ? std::min(pool.at_boundary ? 1 : 2, pool.gradients) : 1;
    const Phases phases =
        phases_of(pool.at_boundary, block ? Phases(kBackward) : kLoss | kBackward);
    for (int i = 0; i < num_slots; ++i) {
      buffers.slots.push_back({unit_class,
                               {fmt::format("gradient.{}.{}", name_of(unit_class), i),
                                Category::kUnreducedGradients, pool.dtype, pool.largest, phases}});
    }
  }
  for (const UnitPlan& unit : units) {
    buffers.groups.emplace_back();
    if (!unit.placement.has_gradients || !unit.trains() || !in_groups(unit)) continue;
    buffers.groups.back() = {unit.spec.name + ".group_gradients", Category::kGradients,
                             unit.precision.accumulate, unit.part_numel(),
                             phases_of(at_boundary(unit), kLoss | kBackward)};
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPlan& unit = units[i];
    if (!unit.ends_apart || !unit.placement.has_gradients) continue;
    const auto of_head = [&](BufferSpec buffer, const char* what) {
      buffer.name = unit.spec.name + what;
      return buffer;
    };
    buffers.head_end = of_head(*unit_buffers(unit).gradients, ".head_gradients");
    if (buffers.groups[i]) {
      buffers.head_end_group = of_head(*buffers.groups[i], ".head_group_gradients");
    }
  }
  buffers.coded = coded_reduction_buffers(units, num_micro_steps);
  return buffers;
}

std::vector<BufferSpec> ReductionBuffers::list() const {
  std::vector<BufferSpec> list;
  for (const Slot& slot : slots) list.push_back(slot.buffer);
  for (const std::optional<BufferSpec>& group : groups) {
    if (group) list.push_back(*group);
  }
  for (BufferSpec& buffer : present({&head_end, &head_end_group}))
    list.push_back(std::move(buffer));
  list.insert(list.end(), coded.begin(), coded.end());
  return list;
}

// At the boundary the accumulator is reduced, which then has the type of reductions.
Traffic gradient_traffic(const std::vector<UnitPlan>& all_units, int num_micro_steps) {
  std::vector<const UnitPlan*> ends;
  for (const UnitPlan& unit : all_units) ends.insert(ends.end(), unit.ends_apart ? 2 : 1, &unit);
  Traffic traffic;
  for (const UnitPlan* end : ends) {
    const UnitPlan& unit = *end;
    if (!unit.trains() || unit.has_owners()) continue;  // push_traffic
    const std::int64_t numel = unit.layout.numel();
    const Precision& precision = unit.precision;
    if (unit.tie) {
      traffic.add(
          "gradients of both ends", Collective::kAllReduce, precision.accumulate,
          unit.updated_numel(),
          {.count = 2, .peer = unit.tie->is_first ? unit.tie->last_rank : unit.tie->first_rank});
    }
    if (all_at_once(unit, num_micro_steps)) {
      traffic.add("gradients", Collective::kAllReduce, precision.reduce, numel, unit.group());
      continue;
    }
    add_group(traffic, unit, num_reductions(unit, num_micro_steps));
    add_replicas(traffic, unit);
    if (!unit.placement.optimizer_sharded()) {
      traffic.add("gradients", Collective::kAllGather, precision.accumulate, numel, unit.group());
    }
  }
  return traffic;
}

}  // namespace sherd::sharding
