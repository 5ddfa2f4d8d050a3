#include "optim/elementwise.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "optim/eight_bits.h"
#include "optim/host_update.h"
#include "optim/state_ring.h"

namespace sherd::optim {
namespace {

bool is_adam(const OptimizerOptions& options) {
  return options.type == OptimizerType::kAdamW || options.type == OptimizerType::kAdam;
}

// The same for every parameter.
std::vector<std::string> kinds_of(const OptimizerOptions& options) {
  if (is_adam(options)) return {"exp_avg", "exp_avg_sq"};
  if (options.type == OptimizerType::kLion) return {"exp_avg"};
  if (options.type == OptimizerType::kSgd && options.momentum == 0.0f) return {};
  return {"momentum"};
}

// What passes through a ring: moments, then FP32 parameters; for an update on the host, gradients
// and rounded weights.
std::vector<OffloadedKind> kinds_on_disk(const OptimizerOptions& options) {
  std::vector<OffloadedKind> kinds;
  if (options.offload.host_updates) return {{}, {}};
  if (options.offload.moments) {
    for (const std::string& kind : stored_kinds(kinds_of(options), options.moment_type)) {
      const MomentForm form = form_of(kind, options.moment_type);
      kinds.push_back({form.dtype, form.elements});
    }
  }
  if (options.offload.master || options.offload.parameters) kinds.push_back({});
  return kinds;
}

// Elements of a block of moments elsewhere; 0: they are in memory. Units that the device updates
// among others that the host updates keep theirs.
MomentBlock moment_block(const OptimizerOptions& options) {
  const std::int64_t block = options.offload.moments ? offload_block(options) : 0;
  return [block, by_unit = options.offload.host_updates](const sharding::UnitPlan& unit) {
    return by_unit && !HostUpdate::has(unit) ? 0 : block;
  };
}

std::vector<BufferSpec> buffers_of(const OptimizerOptions& options,
                                   const sharding::ShardingPlan& plan) {
  const std::int64_t block = offload_block(options);
  std::vector<BufferSpec> buffers =
      moment_buffers(plan, stored_kinds(kinds_of(options), options.moment_type),
                     options.moment_type, moment_block(options));
  if (options.offload.host_updates) {
    std::ranges::copy(HostUpdate::buffers(plan.units, block), std::back_inserter(buffers));
  } else if (block > 0) {
    buffers.push_back(StateRing::buffer(kinds_on_disk(options), block, plan.units));
  }
  return buffers;
}

class Elementwise final : public Optimizer {
 public:
  Elementwise(const OptimizerOptions& options, const sharding::Rank& rank,
              const std::vector<sharding::UnitState>& units)
      : options_(options),
        slices_(updated_slices(units, options, offload_block(options))),
        kinds_(stored_kinds(kinds_of(options), options.moment_type)) {
    const std::int64_t block = offload_block(options);
    for (const std::string& kind : kinds_) {
      moments_.push_back(
          acquire_moments(rank, units, kind, options.moment_type, moment_block(options)));
    }
    if (options.offload.host_updates) host_.emplace(rank, units, block);
    if (block == 0 || host_) return;
    std::vector<std::vector<Tensor>> at_rest;
    if (options.offload.moments) {
      for (const std::vector<Buffer>& of_kind : moments_) {
        at_rest.emplace_back(of_kind.begin(), of_kind.end());
      }
    }
    if (options.offload.master || options.offload.parameters) {
      std::ranges::transform(units, std::back_inserter(at_rest.emplace_back()),
                             [](const sharding::UnitState& unit) { return unit.on_disk(); });
    }
    ring_.emplace(rank, kinds_on_disk(options), std::move(at_rest), block, units);
  }

  void prepare(Stream&, const UpdateStep&) override {
    if (host_) host_->begin_step();
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    if (is_on_host(unit)) return update_on_host(unit, step);
    for (const UpdatedSlice& slice : slices_[unit]) {
      if (ring_) ring_->enter(unit, slice.first_element / ring_->block());
      for (const UpdatedSlice::Group& group : slice.groups) {
        update(stream, unit, slice, group, step, {slice.gradient, slice.rounded});
      }
    }
    if (ring_) ring_->leave();
  }

  Stream* updating(int unit) const override {
    return is_on_host(unit) ? &host_->stream() : nullptr;
  }
  bool rounds_parameters() const override { return true; }

  std::vector<MomentPiece> moment_pieces() const override {
    std::vector<MomentPiece> pieces;
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
        const std::int64_t elements = form_of(kinds_[kind], options_.moment_type).elements;
        for (const UpdatedSlice& slice : slices_[unit]) {
          add_moment_pieces(slice, kinds_[kind], slice.part_of(moments_[kind][unit], elements),
                            pieces, elements);
        }
      }
    }
    return pieces;
  }

 private:
  bool is_on_host(int unit) const { return host_ && host_->updates(unit); }

  void update_on_host(int unit, const UpdateStep& step) {
    for (const UpdatedSlice& slice : slices_[unit]) {
      host_->add({.gradient = slice.gradient,
                  .rounded = slice.rounded,
                  .moves = state_bytes(slice, unit),
                  .update = [this, unit, &slice, step](Stream& cores, const ConstTensor& gradient,
                                                       const Tensor& rounded) {
                    for (const UpdatedSlice::Group& group : slice.groups) {
                      update(cores, unit, slice, group, step, {gradient, rounded});
                    }
                  }});
    }
  }

  // Weights and moments of a slice.
  DiskTraffic state_bytes(const UpdatedSlice& slice, int unit) const {
    std::int64_t bytes = slice.parameter.bytes();
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      const std::int64_t elements = form_of(kinds_[kind], options_.moment_type).elements;
      bytes += slice.part_of(moments_[kind][unit], elements).bytes();
    }
    return {bytes, bytes};
  }

  // Where an update finds the gradient, and where it puts rounded weights.
  struct Ends {
    ConstTensor gradient;
    Tensor rounded;
  };
  void update(Stream& stream, int unit, const UpdatedSlice& slice, const UpdatedSlice::Group& group,
              const UpdateStep& step, const Ends& ends) {
    const ParameterGroup rates = options_.rates_of(group.group);
    kernels::UpdateCommon common = common_of(slice, step, options_.moment_type);
    common.gradient = ends.gradient;
    common.segments = group.segments;
    common.lr = step.lr * rates.lr_factor;
    common.rounded = ends.rounded;
    common.parameter = here(slice.parameter);
    const Tensor first = moment(slice, unit, 0), second = moment(slice, unit, 1);
    common.scales = scales(slice, unit, 0);
    common.second_scales = scales(slice, unit, 1);
    if (is_adam(options_)) {
      kernels::adam_update(stream, {.common = common,
                                    .exp_avg = first,
                                    .exp_avg_sq = second,
                                    .decoupled_decay = options_.type == OptimizerType::kAdamW,
                                    .beta1 = rates.beta1,
                                    .beta2 = rates.beta2,
                                    .eps = rates.eps,
                                    .update_number = step.update_number});
    } else if (options_.type == OptimizerType::kSgd) {
      kernels::sgd_update(stream, {common, first, options_.momentum});
    } else {
      SHERD_CHECK(options_.type == OptimizerType::kLion, "an optimizer without an update");
      kernels::lion_update(stream, {common, first, rates.beta1, rates.beta2});
    }
  }

  // The slice's part of the optimizer's first or second moment; empty if it has no such.
  Tensor moment(const UpdatedSlice& slice, int unit, std::size_t number) const {
    const std::size_t kind = options_.moment_type.in_8_bits ? 2 * number : number;
    return kind < kinds_.size() ? here(slice.part_of(moments_[kind][unit])) : Tensor{};
  }
  Tensor scales(const UpdatedSlice& slice, int unit, std::size_t number) const {
    const std::size_t kind = 2 * number + 1;
    if (!options_.moment_type.in_8_bits || kind >= kinds_.size()) return {};
    return here(
        slice.part_of(moments_[kind][unit], form_of(kinds_[kind], options_.moment_type).elements));
  }
  Tensor here(const Tensor& tensor) const { return ring_ ? ring_->here(tensor) : tensor; }

  OptimizerOptions options_;
  std::vector<std::vector<UpdatedSlice>> slices_;
  std::vector<std::string> kinds_;            // as stored
  std::vector<std::vector<Buffer>> moments_;  // by kind, then by unit
  std::optional<StateRing> ring_;             // what is on disk
  std::optional<HostUpdate> host_;
};

}  // namespace

std::int64_t offload_block(const OptimizerOptions& options) {
  return options.offload.active()
             ? offload_block(kinds_on_disk(options), options.offload.buffer_bytes)
             : 0;
}

OptimizerDescriptor elementwise_descriptor(OptimizerType type) {
  return {.type = type,
          .moment_kinds =
              [](const OptimizerOptions& options, const UnitSpec&, const ParameterSpec&) {
                return stored_kinds(kinds_of(options), options.moment_type);
              },
          .buffers = [](const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                        int) { return buffers_of(options, plan); },
          .traffic = [](const OptimizerOptions&, const sharding::ShardingPlan&,
                        int) { return sharding::Traffic(); },
          .make = [](const OptimizerOptions& options, const sharding::Rank& rank,
                     const std::vector<sharding::UnitState>& units) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Elementwise>(options, rank, units);
          },
          .uneven_numels = nullptr,
          .defaults = {.beta2 = type == OptimizerType::kLion ? 0.99 : 0.95}};
}

}  // namespace sherd::optim
