#include "optim/elementwise.h"

namespace sherd::optim {
namespace {

class Elementwise final : public Optimizer {
 public:
  Elementwise(const OptimizerOptions& options, const sharding::Rank& rank,
              const std::vector<sharding::UnitState>& units)
      : options_(options),
        slices_(updated_slices(units, options.decay)),
        first_(units.size()),
        second_(units.size()) {
    const bool adam = is_adam();
    if (options.type == OptimizerType::kSgd && options.momentum == 0.0f) return;
    const char* first_name = options.type == OptimizerType::kSgd ? "momentum" : "exp_avg";
    first_ = acquire_moments(rank, units, first_name, options.moments);
    if (adam) second_ = acquire_moments(rank, units, "exp_avg_sq", options.moments);
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    for (const UpdatedSlice& slice : slices_[unit]) {
      const kernels::UpdateCommon common = common_of(slice, step, options_.moments);
      const Tensor first = slice.part_of(first_[unit]);
      if (is_adam()) {
        kernels::adam_update(stream, {.common = common,
                                      .exp_avg = first,
                                      .exp_avg_sq = slice.part_of(second_[unit]),
                                      .decoupled_decay = options_.type == OptimizerType::kAdamW,
                                      .beta1 = options_.beta1,
                                      .beta2 = options_.beta2,
                                      .eps = options_.eps,
                                      .time_step = step.time_step});
      } else if (options_.type == OptimizerType::kSgd) {
        kernels::sgd_update(stream, {common, first, options_.momentum});
      } else {
        kernels::lion_update(stream, {common, first, options_.beta1, options_.beta2});
      }
    }
  }

 private:
  bool is_adam() const {
    return options_.type == OptimizerType::kAdamW || options_.type == OptimizerType::kAdam;
  }

  OptimizerOptions options_;
  std::vector<std::vector<UpdatedSlice>> slices_;
  std::vector<Buffer> first_, second_;
};

}  // namespace

std::unique_ptr<Optimizer> make_elementwise(const OptimizerOptions& options,
                                            const sharding::Rank& rank,
                                            const std::vector<sharding::UnitState>& units) {
  return std::make_unique<Elementwise>(options, rank, units);
}

}  // namespace sherd::optim
