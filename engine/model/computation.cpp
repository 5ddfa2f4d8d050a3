#include "engine/model/computation.h"

#include <numeric>

#include "engine/model/cut/residual_rows.h"
#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace sherd::model {

Computation::Computation(const ModelShape& shape_, Allocator& memory, Stream& stream_,
                         Collectives& collectives_, const ModelPart* part)
    : shape(shape_),
      stream(stream_),
      collectives(collectives_),
      activations(
          shape, kernels::compute_device(stream),
          [&](const BufferSpec& spec) { return memory.acquire(spec); }, part),
      residuals(static_cast<std::size_t>(shape.num_layers + 1 + 2 * shape.mtp_layers)),
      kept(static_cast<std::size_t>(shape.num_blocks())),
      waiting(static_cast<std::size_t>(shape.num_blocks())) {
  if (!part) {
    std::iota(residuals.begin(), residuals.end(), 0);
    if (shape.residual_slots > 0) {
      for (int& slot : residuals) slot %= shape.residual_slots;
    }
    if (shape.recompute != Recompute::kFull) std::iota(kept.begin(), kept.end(), 0);
  }
  rows = make_residual_rows(*this);
  sums = make_sums(*this);
  shares = make_tensor_shares(*this);
}

Computation::~Computation() = default;

Tensor Computation::residual_TD(std::int64_t layer) const {
  return at(static_cast<std::size_t>(layer));
}

Tensor Computation::at(std::size_t place) const {
  const int slot = residuals[place];
  const Tensor stream_TD = slot == Standing::kElsewhere ? output_TD : residual_slot(slot);
  return stream_TD.part(0, shape.residual_tokens() * shape.width);
}

BlockTensors Computation::kept_of(std::int64_t block) const {
  return activations.block(block, kept[static_cast<std::size_t>(block)], input_TD(block), shape);
}

const WaitingBuffers& Computation::waiting_of(std::int64_t block) const {
  return activations.waiting[static_cast<std::size_t>(waiting[static_cast<std::size_t>(block)])];
}

Part::Part(Computation& computation)
    : c_(computation),
      shape_(computation.shape),
      compute_(computation.stream),
      collectives_(computation.collectives),
      activations_(computation.activations) {}

void Part::project(const Affine& affine, const Tensor& x, std::int64_t inputs, std::int64_t outputs,
                   const Tensor& y, const Tensor& residual) {
  kernels::linear_forward(compute_, {.shape = {shape_.tokens(), inputs, outputs},
                                     .x = x,
                                     .w = affine.weight,
                                     .bias = affine.bias,
                                     .y = y,
                                     .workspace = activations_.workspace,
                                     .residual = residual,
                                     .interleaved = c_.interleaved});
  activations_.adapters.forward(compute_, affine, x, y, activations_.workspace);
}

void Part::project_backward(const Affine& parameters, const Affine& gradients,
                            const InputGradient& args, const Buffer WaitingBuffers::*waits) {
  if (c_.puts_off != nullptr) {
    const Tensor kept = (c_.puts_off->*waits).tensor();
    if (kept.data != args.dy.data) compute_.copy(args.dy.data, kept.data, args.dy.bytes());
  } else if (gradients.weight) {  // not frozen
    c_.sums->weight_gradient(gradients, args.x, args.inputs, args.dy, args.outputs);
  }
  const auto backward_of_adapters = [&](const AdapterProducts::Parts& parts) {
    activations_.adapters.backward(compute_, parameters, gradients, args.x, args.dy, args.dx,
                                   activations_.workspace, parts);
  };
  const bool shares = static_cast<bool>(args.dy_of_copies);
  const bool overwrites_x = args.x.data == args.dx.data;  // the place of all ranks' rows
  if (shares || overwrites_x) backward_of_adapters({.b = true, .a = false, .input = false});
  if (shares) c_.shares->leave_own_share(args.dy_of_copies);
  if (overwrites_x) backward_of_adapters({.b = false, .a = true, .input = false});
  if (args.dx) c_.sums->input_gradient(parameters.weight, args);
  backward_of_adapters({.b = !shares && !overwrites_x, .a = !overwrites_x, .input = true});
  c_.shares->add_up_adapters(gradients);
}

void Part::project_backward_input(const Affine& parameters, const Affine& gradients,
                                  const InputGradient& args) {
  if (!args.dx) return;
  c_.sums->input_gradient(parameters.weight, args);
  activations_.adapters.backward(compute_, parameters, gradients, args.x, args.dy, args.dx,
                                 activations_.workspace, {.b = false, .a = false, .input = true});
}

void Part::head_product(const HeadParameters& parameters, const Tensor& normed_CD,
                        std::int64_t tokens, const Tensor& logits_CV) {
  kernels::linear_forward(compute_, {.shape = {tokens, shape_.width, shape_.vocab_size},
                                     .x = normed_CD,
                                     .w = parameters.weight,
                                     .bias = parameters.bias,
                                     .y = logits_CV,
                                     .workspace = activations_.workspace,
                                     .interleaved = c_.interleaved});
}

void Part::normalise(const Affine& parameters, const Tensor& r_TD, const SiteTensors& site,
                     const Tensor& y_TD) {
  kernels::norm_forward(compute_, {.shape = shape_.norm_shape(),
                                   .residual = r_TD,
                                   .branch = {},
                                   .branch_dropout = {},
                                   .weight = parameters.weight,
                                   .bias = parameters.bias,
                                   .residual_out = {},
                                   .y = y_TD,
                                   .mean = site.mean,
                                   .rstd = site.statistic});
}

// The kernels of norms always write gradients.
Affine Part::norm_gradients(const Affine& parameters, const Affine& gradients) const {
  if (gradients.weight || !parameters.weight) return gradients;
  // The bias's place is the weight's: neither is read.
  const Tensor discarded = activations_.adapters.discarded(parameters.weight.numel);
  return {discarded, parameters.bias ? discarded : Tensor{}};
}

ConstTensor Part::read_again(const Tensor& input_TD) {
  return c_.puts_off == nullptr ? all_rows("what a branch read", input_TD) : input_TD;
}

kernels::Dropout Part::dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout;
  if (!pass.training) return dropout;
  dropout.probability = static_cast<float>(shape_.dropout);
  dropout.address = {pass.seed, pass.step, site};
  dropout.first_element =
      (pass.first_row * shape_.whole_seq_length() + shape_.first_position()) * shape_.width;
  if (shape_.context.is_cut()) {
    dropout.part = {.columns = shape_.width,
                    .all_columns = shape_.width,
                    .rows = shape_.seq_length,
                    .all_rows = shape_.whole_seq_length(),
                    .gap_at = shape_.position_run(0).count,
                    .gap = shape_.position_gap()};
  }
  return dropout;
}

kernels::Dropout Part::branch_dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout = this->dropout(pass, site);
  if (dropout.part.columns > 0) {
    dropout.part.rows_before = shape_.first_residual_token();
  } else {
    dropout.first_element += shape_.first_residual_token() * shape_.width;
  }
  return dropout;
}

kernels::Dropout Part::attention_dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout = this->dropout(pass, site);
  const std::int64_t positions = shape_.whole_seq_length();
  dropout.first_element = pass.first_row * shape_.all_query_heads() * positions * positions;
  dropout.part = {};  // attention counts heads and positions itself
  return dropout;
}

std::int64_t Part::first_table_row(const Pass& pass) const {
  const bool begins_here = !pass.documents && shape_.position_runs() == 1;
  return begins_here ? pass.first_position + shape_.first_position() : 0;
}

Tensor Part::all_rows(const char* what, const Tensor& own_TD) {
  return c_.rows->all_rows(what, own_TD);
}

Tensor Part::all_rows_place(const Tensor& own_TD) const {
  return c_.rows->all_rows_place(own_TD);
}

void Part::add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD) {
  c_.rows->add_up_rows(what, addend_TD, sum_TD);
}

void Part::add_up_norm(const Affine& gradients) {
  c_.rows->add_up_norm(gradients);
}

Tensor Part::branch_TD() const {
  return rows(activations_.branch_TD, shape_.residual_tokens(), shape_.width);
}

Tensor Part::d_branch_TD() const {
  if (!shape_.branch_gradients_differ()) return residual_gradient();
  return rows(activations_.d_branch_TD, shape_.residual_tokens(), shape_.width);
}

Tensor Part::residual_gradient() const {
  return rows(activations_.d_residual_TD, shape_.residual_tokens(), shape_.width);
}

}  // namespace sherd::model
