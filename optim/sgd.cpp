#include "optim/optimizer.h"
#include "optim/slices.h"

namespace sherd::optim {
namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
      const SgdOptions& options)
      : options_(options), slices_(updated_slices(units, options.decay)) {
    if (options.momentum != 0.0f) momentum_ = acquire_moments(rank, units, "momentum");
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    for (const UpdatedSlice& slice : slices_[unit]) {
      Tensor momentum_buffer;
      if (!momentum_.empty()) {
        momentum_buffer =
            momentum_[unit].tensor().part(slice.first_element, slice.parameter.numel);
      }
      kernels::sgd_update(stream, {.parameter = slice.parameter,
                                   .gradient = slice.gradient,
                                   .momentum_buffer = momentum_buffer,
                                   .segments = slice.segments,
                                   .lr = step.lr,
                                   .momentum = options_.momentum,
                                   .gradient_scale = step.gradient_scale});
    }
  }

 private:
  SgdOptions options_;
  std::vector<std::vector<UpdatedSlice>> slices_;
  std::vector<Buffer> momentum_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const SgdOptions& options) {
  return std::make_unique<Sgd>(rank, units, options);
}

}  // namespace sherd::optim
