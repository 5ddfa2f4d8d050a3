#include "optim/matrices/dion_sum.h"

#include "kernels/linear.h"
#include "kernels/pointwise.h"
#include "optim/matrices/dion.h"
#include "optim/matrices/dion_factors.h"
#include "optim/matrices/matrix_plan.h"

namespace sherd::optim {
namespace {

class DionSum final : public FactoredSum {
 public:
  DionSum(const Compression& options, const sharding::Rank& rank,
          const std::vector<sharding::UnitState>& units, int num_micro_steps)
      : FactoredSum(dion_form(options.dion), rank, units, num_micro_steps),
        options_(options.dion),
        share_(1.0f / static_cast<float>(options.num_replicas)) {
    begin();
  }

  // Without targets there is no update, so momenta stay as they are, averaged or not.
  void begin_step(std::int64_t step, std::int64_t /*epoch*/, bool has_targets) override {
    plain_ = !has_targets;
    averages_ = options_.average_interval > 0 && step > 0 && step % options_.average_interval == 0;
  }

 private:
  void first_basis(const Product& basis) override {
    fill_first_basis(rank().compute(), *options_.optimizer, basis.parameter, basis.number, basis.q);
  }
  void begin_unit(Stream& stream, int unit, const Tensor& kept) override {
    if (!averages_ || links().replicas(unit) == nullptr) return;
    links().sum_plainly(stream, unit, kept);
    scale(stream, kept, share_);
  }
  void rows(Stream& stream, const Product& product) override {
    dion_rows(stream, product.shape, product.q, product.matrix, product.p, product.workspace);
  }
  void columns(Stream& stream, const Product& product) override {
    dion_columns(stream, product.shape, product.p, product.matrix, product.q, product.workspace);
  }
  void next_basis(Stream& stream, const kernels::LowRankShape& shape, const Tensor& sum,
                  const Tensor& own, const Tensor& basis) override {
    const float kept = unused_share(*options_.optimizer);
    if (own.data != sum.data) scale(stream, own, kept);
    kernels::next_basis(stream, shape.rank, shape.columns, kept, sum, basis);
  }

  static void scale(Stream& stream, const Tensor& x, float factor) {
    kernels::dropout_backward(stream, x, {}, x, factor);
  }

  DionSumOptions options_;
  float share_;
  bool averages_ = false;
};

}  // namespace

FactorForm dion_form(const DionSumOptions& options) {
  return {
      .buffers = "dion",
      .kept_kind = "momentum",
      .basis_kind = std::string(kDionBasisKind),
      .shapes =
          [optimizer = options.optimizer](const UnitSpec& unit, const ParameterSpec& parameter) {
            std::vector<FactoredShape> shapes;
            if (!is_by_matrix(*optimizer, unit, parameter)) return shapes;
            for (const MatrixPart& part : matrix_parts(parameter)) {
              shapes.push_back({part, dion_rank(*optimizer, part)});
            }
            return shapes;
          },
      .workspace = dion_workspace_numel};
}

std::unique_ptr<CompressedSum> make_dion_sum(const Compression& options, const sharding::Rank& rank,
                                             const std::vector<sharding::UnitState>& units,
                                             int num_micro_steps) {
  return std::make_unique<DionSum>(options, rank, units, num_micro_steps);
}

}  // namespace sherd::optim
