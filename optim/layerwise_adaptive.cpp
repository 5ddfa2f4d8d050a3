#include "optim/layerwise_adaptive.h"

#include <algorithm>

namespace sherd::optim {
namespace {

// The same for every parameter.
std::vector<std::string> kinds_of(const OptimizerOptions& options) {
  if (options.type == OptimizerType::kLars) return {"momentum"};
  return {"exp_avg", "exp_avg_sq"};
}

class TrustRatios final : public LayerwiseAdaptive {
 public:
  TrustRatios(const OptimizerOptions& options, const sharding::Rank& rank,
              const std::vector<sharding::UnitState>& units)
      : options_(options),
        slices_(updated_slices(units, options)),
        norms_(rank, units, options.moment_type) {
    first_ = acquire_moments(rank, units, kinds_of(options)[0], options.moment_type);
    second_.resize(units.size());
    if (lamb()) second_ = acquire_moments(rank, units, kinds_of(options)[1], options.moment_type);
    for (const auto& of_unit : slices_) {
      for (const UpdatedSlice& slice : of_unit) {
        segment_ratios_.emplace_back(slice.segments.size());
      }
    }
    for (const sharding::UnitState& unit : units) {
      for (const ParameterSpec& parameter : unit.spec().parameters) {
        if (weight_decays_.size() <= parameter.index) {
          weight_decays_.resize(parameter.index + 1);
          lr_factors_.resize(parameter.index + 1, 1.0f);
        }
        weight_decays_[parameter.index] = options.decay_of(parameter);
        lr_factors_[parameter.index] = options.lr_factor_of(parameter);
      }
    }
  }

  void prepare(Stream& stream, const UpdateStep& step) override {
    if (lamb()) {
      for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
        for (const UpdatedSlice& slice : slices_[unit]) {
          kernels::lamb_moments(stream, lamb_args(static_cast<int>(unit), slice, step));
        }
      }
    }
    const auto norms =
        norms_.all(stream, slices_, [&](int unit, const UpdatedSlice& slice, const Tensor& sums) {
          if (lamb()) {
            kernels::lamb_norms(stream, lamb_args(unit, slice, step), sums);
          } else {
            kernels::lars_norms(stream, lars_args(unit, slice, step), sums);
          }
        });
    set_ratios(norms);
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    std::size_t index = 0;
    for (int before = 0; before < unit; ++before) index += slices_[before].size();
    for (const UpdatedSlice& slice : slices_[unit]) {
      const std::vector<float>& ratios = segment_ratios_[index++];
      if (lamb()) {
        kernels::lamb_apply(stream, lamb_args(unit, slice, step), ratios);
      } else {
        kernels::lars_apply(stream, lars_args(unit, slice, step), ratios);
      }
    }
  }

  std::vector<MomentPiece> moment_pieces() const override {
    std::vector<MomentPiece> pieces;
    const std::vector<std::string> kinds = kinds_of(options_);
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
        const Buffer& moments = kind == 0 ? first_[unit] : second_[unit];
        for (const UpdatedSlice& slice : slices_[unit]) {
          add_moment_pieces(slice, kinds[kind], slice.part_of(moments), pieces);
        }
      }
    }
    return pieces;
  }

 private:
  bool lamb() const { return options_.type == OptimizerType::kLamb; }

  kernels::LambUpdate lamb_args(int unit, const UpdatedSlice& slice, const UpdateStep& step) const {
    return {.common = common_of(slice, step, options_.moment_type),
            .exp_avg = slice.part_of(first_[unit]),
            .exp_avg_sq = slice.part_of(second_[unit]),
            .beta1 = options_.beta1,
            .beta2 = options_.beta2,
            .eps = options_.eps,
            .update_number = step.update_number};
  }
  kernels::LarsUpdate lars_args(int unit, const UpdatedSlice& slice, const UpdateStep& step) const {
    return {.common = common_of(slice, step, options_.moment_type),
            .momentum_buffer = slice.part_of(first_[unit]),
            .momentum = options_.momentum};
  }

  // A gradient of 1e-40 has a norm, too; a float must hold its ratio, and that times the rate.
  float ratio_of(const TensorNorms::Pair& norms, float weight_decay) const {
    constexpr double kLargest = 1e30;
    if (norms.first == 0.0 || norms.second == 0.0) return 1.0f;
    const double ratio = lamb() ? norms.first / norms.second
                                : options_.trust_coefficient * norms.first /
                                      (norms.second + weight_decay * norms.first);
    return static_cast<float>(std::min(ratio, kLargest));  // NaN stays NaN
  }

  void set_ratios(const std::vector<TensorNorms::Pair>& norms) {
    ratios_.resize(norms.size());
    for (std::size_t p = 0; p < norms.size(); ++p) {
      ratios_[p] = ratio_of(norms[p], weight_decays_[p]) * lr_factors_[p];
    }
    std::size_t index = 0;
    for (const auto& of_unit : slices_) {
      for (const UpdatedSlice& slice : of_unit) {
        std::vector<float>& ratios = segment_ratios_[index++];
        for (std::size_t i = 0; i < slice.segments.size(); ++i) {
          ratios[i] = ratios_[slice.segments[i].parameter];
        }
      }
    }
  }

  OptimizerOptions options_;
  std::vector<std::vector<UpdatedSlice>> slices_;
  // By parameter index, those on other ranks included.
  std::vector<float> weight_decays_, lr_factors_;
  TensorNorms norms_;
  std::vector<Buffer> first_, second_;
  std::vector<std::vector<float>> segment_ratios_;  // by slice, in the order of slices_
};

}  // namespace

OptimizerDescriptor layerwise_adaptive_descriptor(OptimizerType type) {
  return {.type = type,
          .moment_kinds = [](const OptimizerOptions& options, const UnitSpec&,
                             const ParameterSpec&) { return kinds_of(options); },
          .buffers =
              [](const OptimizerOptions& options, const sharding::ShardingPlan& plan, int) {
                const TensorNormBuffers norms = tensor_norm_buffers(plan, options.moment_type);
                std::vector<BufferSpec> buffers = {norms.sums, norms.exchange};
                for (BufferSpec& moments :
                     moment_buffers(plan, kinds_of(options), options.moment_type)) {
                  buffers.push_back(std::move(moments));
                }
                return buffers;
              },
          .traffic = [](const OptimizerOptions&, const sharding::ShardingPlan& plan,
                        int) { return tensor_norm_traffic(plan); },
          .make = [](const OptimizerOptions& options, const sharding::Rank& rank,
                     const std::vector<sharding::UnitState>& units) -> std::unique_ptr<Optimizer> {
            return std::make_unique<TrustRatios>(options, rank, units);
          },
          .uneven_numels = nullptr,
          .defaults = {.eps = type == OptimizerType::kLamb ? 1e-6 : 1e-8}};
}

}  // namespace sherd::optim
