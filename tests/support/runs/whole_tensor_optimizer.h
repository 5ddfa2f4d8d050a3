/// Every optimizer on a single rank without slices: whole tensors, double precision, the
/// element-wise steps of oracle_update.h. Has no concept of ranks, stages, segments or owners.
#pragma once

#include <functional>
#include <vector>

#include "optim/optimizer.h"
#include "tests/support/oracles/oracle_update.h"

namespace sherd::oracle {

/// A value by parameter index and element.
using ElementValue = std::function<double(std::uint32_t parameter, std::int64_t element)>;

class WholeTensorOptimizer {
 public:
  /// Weight decay applies to tensors of two or more dimensions; `options.decay.no_decay` must be
  /// empty.
  WholeTensorOptimizer(const optim::OptimizerOptions& options, const std::vector<UnitSpec>& units,
                       const ElementValue& initial);

  void step(const optim::UpdateStep& step, const ElementValue& gradient);

  const Values& parameter(std::uint32_t index) const { return tensors_[index].state.parameter; }
  /// The last step's trust ratios by parameter index; 1 where there is none.
  const Values& ratios() const { return ratios_; }
  /// Lion's step is discontinuous where its direction is 0: this element's smallest distance from
  /// it so far. Infinity for other optimizers.
  double smallest_direction(std::uint32_t index, std::int64_t element) const {
    return tensors_[index].smallest_direction[static_cast<std::size_t>(element)];
  }

 private:
  struct Tensor {
    ParameterSpec spec;
    bool in_block = false;
    UpdateState state;  ///< adafactor: first moments are of rows, second moments of columns
    Values smallest_direction;
    std::vector<Values> bases{};  ///< dion: of each matrix, [vectors, columns]
  };
  void step_adam(Tensor& tensor, const Values& gradient, const kernels::UpdateCommon& common,
                 std::int64_t update_number) const;
  void step_lion(Tensor& tensor, const Values& gradient, const kernels::UpdateCommon& common) const;
  void step_lamb(Tensor& tensor, const Values& gradient, const kernels::UpdateCommon& common,
                 std::int64_t update_number);
  void step_lars(Tensor& tensor, const Values& gradient, const kernels::UpdateCommon& common);
  void step_adafactor(Tensor& tensor, const Values& gradient, const optim::UpdateStep& step,
                      double weight_decay) const;
  void step_muon(Tensor& tensor, const Values& gradient, const kernels::UpdateCommon& common) const;
  void step_dion(Tensor& tensor, const Values& gradient, const kernels::UpdateCommon& common) const;

  optim::OptimizerOptions options_;
  std::vector<Tensor> tensors_;  // by index
  Values ratios_;
};

}  // namespace sherd::oracle
