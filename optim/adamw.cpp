#include "optim/optimizer.h"
#include "optim/slices.h"

namespace sherd::optim {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
        const AdamWOptions& options)
      : options_(options),
        slices_(updated_slices(units, options.decay)),
        exp_avg_(acquire_moments(rank, units, "exp_avg")),
        exp_avg_sq_(acquire_moments(rank, units, "exp_avg_sq")) {}

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    for (const UpdatedSlice& slice : slices_[unit]) {
      const std::int64_t count = slice.parameter.numel;
      kernels::adamw_update(
          stream, {.parameter = slice.parameter,
                   .gradient = slice.gradient,
                   .exp_avg = exp_avg_[unit].tensor().part(slice.first_element, count),
                   .exp_avg_sq = exp_avg_sq_[unit].tensor().part(slice.first_element, count),
                   .segments = slice.segments,
                   .lr = step.lr,
                   .beta1 = options_.beta1,
                   .beta2 = options_.beta2,
                   .eps = options_.eps,
                   .time_step = step.time_step,
                   .gradient_scale = step.gradient_scale});
    }
  }

 private:
  AdamWOptions options_;
  std::vector<std::vector<UpdatedSlice>> slices_;
  std::vector<Buffer> exp_avg_, exp_avg_sq_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const sharding::Rank& rank,
                                      const std::vector<sharding::UnitState>& units,
                                      const AdamWOptions& options) {
  return std::make_unique<AdamW>(rank, units, options);
}

}  // namespace sherd::optim
