#include "engine/model/cut/sums.h"

#include <algorithm>

#include "engine/model/cut/tensor_shares.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"

namespace sherd::model {

void Sums::add_as_tree(const std::vector<Tensor>& terms, const Tensor& out) {
  for (std::size_t apart = 1; apart < terms.size(); apart *= 2) {
    for (std::size_t i = 0; i + apart < terms.size(); i += 2 * apart) {
      kernels::add(compute_, terms[i + apart], terms[i]);
    }
  }
  kernels::cast(compute_, terms[0], out);
}

namespace {

class OrderedSums final : public Sums {
 public:
  using Sums::Sums;

  void project_to_residual(const Affine& projection, const Tensor& x, std::int64_t inputs,
                           const Tensor& y_TD) override {
    Affine own = projection;
    if (!shape_.part.adds_biases_of_sums()) own.bias = {};
    const Tensor addend_TD = all_rows_place(y_TD);
    project(own, x, inputs, shape_.width, addend_TD);
    add_up_rows("branch", addend_TD, y_TD);
  }

  void weight_gradient(const Affine& gradients, const ConstTensor& x, std::int64_t inputs,
                       const ConstTensor& dy, std::int64_t outputs) override {
    kernels::linear_backward_weight(compute_, {{shape_.tokens(), inputs, outputs},
                                               dy,
                                               x,
                                               gradients.weight,
                                               gradients.bias,
                                               gradients.adds,
                                               activations_.workspace});
  }

  void input_gradient(const Tensor& weight, const InputGradient& args) override {
    kernels::linear_backward_input(compute_, {{shape_.tokens(), args.inputs, args.outputs},
                                              args.dy,
                                              weight,
                                              args.dx,
                                              args.add,
                                              activations_.workspace,
                                              args.gelu_input});
  }

  Tensor d_read_TD() const override {
    const Buffer& shared = activations_.d_normed_TD;
    return shared ? rows(shared, shape_.tokens(), shape_.width) : all_rows_place(branch_TD());
  }

  void finish_read_gradient() override {
    add_up_rows("gradient of what a branch read", d_read_TD(), branch_TD());
  }

  void train_head(const HeadParameters& parameters, const HeadParameters& gradients,
                  const Pass& pass, const Tensor& normed_TD) override {
    for (std::int64_t first = 0; first < shape_.tokens(); first += activations_.chunk_tokens) {
      const std::int64_t tokens = std::min(activations_.chunk_tokens, shape_.tokens() - first);
      const kernels::LinearShape matmul{tokens, shape_.width, shape_.vocab_size};
      const Tensor logits_CV = activations_.logits_CV.tensor().part(0, tokens * shape_.vocab_size);
      const Tensor normed_CD = normed_TD.part(first * shape_.width, tokens * shape_.width);
      head_product(parameters, normed_CD, tokens, logits_CV);
      c_.shares->chunk_losses(pass, first, tokens, logits_CV, true);
      if (gradients.weight) {  // not frozen
        kernels::linear_backward_weight(compute_, {.shape = matmul,
                                                   .dy = logits_CV,
                                                   .x = normed_CD,
                                                   .dw = gradients.weight,
                                                   .dbias = {},
                                                   .add_to_output = first > 0 || gradients.adds,
                                                   .workspace = activations_.workspace});
      }
      // The chunk of norm outputs has been used up: its gradient takes its place.
      kernels::linear_backward_input(compute_, {matmul, logits_CV, parameters.weight, normed_CD,
                                                false, activations_.workspace});
    }
  }

  void finish_head_gradient(const Tensor& normed_TD, const Tensor& dx_TD) override {
    add_up_rows("gradient of the head's input", normed_TD, dx_TD);
  }
};

}  // namespace

std::unique_ptr<Sums> make_sums(Computation& computation) {
  if (computation.shape.part.has_canonical_sums()) return make_canonical_sums(computation);
  return std::make_unique<OrderedSums>(computation);
}

}  // namespace sherd::model
