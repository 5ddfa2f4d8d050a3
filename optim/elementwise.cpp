#include "optim/elementwise.h"

#include "optim/eight_bits.h"

namespace sherd::optim {
namespace {

bool is_adam(const OptimizerOptions& options) {
  return options.type == OptimizerType::kAdamW || options.type == OptimizerType::kAdam;
}

// The same for every parameter.
std::vector<std::string> kinds_of(const OptimizerOptions& options) {
  if (is_adam(options)) return {"exp_avg", "exp_avg_sq"};
  if (options.type == OptimizerType::kLion) return {"exp_avg"};
  if (options.momentum == 0.0f) return {};
  return {"momentum"};
}

class Elementwise final : public Optimizer {
 public:
  Elementwise(const OptimizerOptions& options, const sharding::Rank& rank,
              const std::vector<sharding::UnitState>& units)
      : options_(options),
        slices_(updated_slices(units, options)),
        kinds_(stored_kinds(kinds_of(options), options.moment_type)) {
    for (const std::string& kind : kinds_) {
      moments_.push_back(acquire_moments(rank, units, kind, options.moment_type));
    }
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    for (const UpdatedSlice& slice : slices_[unit]) {
      for (const UpdatedSlice::Group& group : slice.groups) {
        update(stream, unit, slice, group, step);
      }
    }
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
  void update(Stream& stream, int unit, const UpdatedSlice& slice, const UpdatedSlice::Group& group,
              const UpdateStep& step) {
    const ParameterGroup rates = options_.rates_of(group.group);
    kernels::UpdateCommon common = common_of(slice, step, options_.moment_type);
    common.segments = group.segments;
    common.lr = step.lr * rates.lr_factor;
    common.rounded = slice.rounded;
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
      kernels::lion_update(stream, {common, first, rates.beta1, rates.beta2});
    }
  }

  // The slice's part of the optimizer's first or second moment; empty if it has no such.
  Tensor moment(const UpdatedSlice& slice, int unit, std::size_t number) const {
    const std::size_t kind = options_.moment_type.in_8_bits ? 2 * number : number;
    return kind < kinds_.size() ? slice.part_of(moments_[kind][unit]) : Tensor{};
  }
  Tensor scales(const UpdatedSlice& slice, int unit, std::size_t number) const {
    const std::size_t kind = 2 * number + 1;
    if (!options_.moment_type.in_8_bits || kind >= kinds_.size()) return {};
    return slice.part_of(moments_[kind][unit],
                         form_of(kinds_[kind], options_.moment_type).elements);
  }

  OptimizerOptions options_;
  std::vector<std::vector<UpdatedSlice>> slices_;
  std::vector<std::string> kinds_;            // as stored
  std::vector<std::vector<Buffer>> moments_;  // by kind, then by unit
};

}  // namespace

OptimizerDescriptor elementwise_descriptor(OptimizerType type) {
  return {.type = type,
          .moment_kinds =
              [](const OptimizerOptions& options, const UnitSpec&, const ParameterSpec&) {
                return stored_kinds(kinds_of(options), options.moment_type);
              },
          .buffers =
              [](const OptimizerOptions& options, const sharding::ShardingPlan& plan, int) {
                return moment_buffers(plan, stored_kinds(kinds_of(options), options.moment_type),
                                      options.moment_type);
              },
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
