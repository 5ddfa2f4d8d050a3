#include "optim/low_rank_sum.h"

#include <algorithm>

#include "kernels/pointwise.h"
#include "optim/matrices/matrix_parts.h"

namespace sherd::optim {
namespace {

std::vector<FactoredShape> shapes_of(const LowRankOptions& options,
                                     const ParameterSpec& parameter) {
  if (parameter.shape.size() != 2) return {};
  std::vector<FactoredShape> shapes;
  std::int64_t factors = 0, whole = 0;
  for (const MatrixPart& part : matrix_parts(parameter)) {
    shapes.push_back({part, std::min({options.rank, part.whole_rows, part.whole_columns})});
    factors += shapes.back().p_numel() + shapes.back().q_numel();
    whole += part.whole_numel();
  }
  const bool gains =
      static_cast<double>(factors) * options.min_compression_rate < static_cast<double>(whole);
  return gains ? shapes : std::vector<FactoredShape>();
}

class LowRankSum final : public FactoredSum {
 public:
  LowRankSum(const LowRankOptions& options, const sharding::Rank& rank,
             const std::vector<sharding::UnitState>& units, int num_micro_steps)
      : FactoredSum(low_rank_form(options), rank, units, num_micro_steps), options_(options) {
    begin();
  }

  void begin_step(std::int64_t step, std::int64_t /*epoch*/, bool has_targets) override {
    plain_ = step < options_.start_step || !has_targets;
  }

 private:
  void first_basis(const Product& basis) override { kernels::fill_zero(rank().compute(), basis.q); }
  void prepare_basis(Stream& stream, const Product& basis) override {
    const auto site = basis.parameter * 8u + static_cast<std::uint32_t>(basis.number);
    kernels::orthonormalise(stream, basis.shape.rank, basis.shape.columns, basis.q,
                            kernels::RandomAddress{options_.seed, 0, site});
  }
  void rows(Stream& stream, const Product& product) override {
    kernels::low_rank_rows(stream, product.shape, product.matrix, product.q, product.p);
  }
  void columns(Stream& stream, const Product& product) override {
    kernels::low_rank_columns(stream, product.shape, product.matrix, product.p, product.q);
  }
  void next_basis(Stream& stream, const kernels::LowRankShape& /*shape*/, const Tensor& sum,
                  const Tensor& /*own*/, const Tensor& basis) override {
    stream.copy(sum.data, basis.data, basis.bytes());
  }

  LowRankOptions options_;
};

}  // namespace

FactorForm low_rank_form(const LowRankOptions& options) {
  return {.buffers = "power_sgd",
          .kept_kind = kErrorKind,
          .basis_kind = kBasisKind,
          .shapes = [options](const UnitSpec& /*unit*/, const ParameterSpec& parameter) {
            return shapes_of(options, parameter);
          }};
}

std::unique_ptr<CompressedSum> make_low_rank_sum(const LowRankOptions& options,
                                                 const sharding::Rank& rank,
                                                 const std::vector<sharding::UnitState>& units,
                                                 int num_micro_steps) {
  return std::make_unique<LowRankSum>(options, rank, units, num_micro_steps);
}

}  // namespace sherd::optim
