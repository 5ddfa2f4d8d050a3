#include "engine/model/cut/residual_rows.h"

#include "kernels/pointwise.h"

namespace sherd::model {
namespace {

class WholeRows final : public ResidualRows {
 public:
  using ResidualRows::ResidualRows;

  Tensor all_rows(const char*, const Tensor& own_TD) override { return own_TD; }
  Tensor all_rows_place(const Tensor& own_TD) const override { return own_TD; }
  void add_up_rows(const char* what, const Tensor&, const Tensor& sum_TD) override {
    collectives_.sum(what, sum_TD);
  }
  void add_up_norm(const Affine&) override {}
};

class SharedRows final : public ResidualRows {
 public:
  using ResidualRows::ResidualRows;

  // Each rank's rows come after those of the one before.
  Tensor all_rows(const char* what, const Tensor& own_TD) override {
    const std::int64_t own = shape_.residual_tokens() * shape_.width;
    const Tensor all = activations_.all_rows_TD.tensor().part(0, shape_.part.degree * own);
    compute_.copy(own_TD.data, all.part(shape_.part.rank * own, own).data, own_TD.bytes());
    collectives_.gather(what, all);
    return all.part(0, shape_.tokens() * shape_.width);
  }

  Tensor all_rows_place(const Tensor&) const override {
    return rows(activations_.all_rows_TD, shape_.tokens(), shape_.width);
  }

  void add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD) override {
    Tensor all = addend_TD;
    all.numel = shape_.part.degree * sum_TD.numel;
    const std::int64_t missing = all.numel - addend_TD.numel;
    if (missing > 0) kernels::fill_zero(compute_, all.part(addend_TD.numel, missing));
    collectives_.reduce_scatter(what, all, sum_TD);
  }

  void add_up_norm(const Affine& gradients) override {
    if (!gradients.weight) return;
    collectives_.sum("gradient of a norm", gradients.weight);
    if (gradients.bias) collectives_.sum("gradient of a norm", gradients.bias);
  }
};

}  // namespace

std::unique_ptr<ResidualRows> make_residual_rows(Computation& computation) {
  if (computation.shape.sequence_parallel()) return std::make_unique<SharedRows>(computation);
  return std::make_unique<WholeRows>(computation);
}

}  // namespace sherd::model
