// Canonical sums: losses, norms and weights have the same bits on any number of tensor and context
// ranks (docs/precision.md). Every sum that ranks may share is a balanced tree over eight groups,
// on one rank too; ranks have whole groups, neighbours, and form their subtree before it goes on
// over ranks (sharding/comm/communicator.h, Trees).
//
//   sum over                   group j of 8                               goes on over
//   heads, feed-forward width  the j-th eighth of each fused matrix       tensor ranks, here
//   vocabulary                 tokens from j G on, G = ceil(V / 8)        tensor ranks, here
//   query heads of a key       heads in the j-th eighth of all            its copies' ranks, here
//   a micro-batch's tokens     positions from j S / 8 on, of every        context ranks, where
//                              sequence                                   gradients are reduced
//                                                                         (GradientReduction)
//
// Sequence parallelism cuts a context rank's positions among its tensor ranks, each of which has
// whole groups of tokens: sums over the tokens of norms go on over these first. Where a sum is over
// heads and tokens, the tree over what is added up here first is inside: heads in norms of heads
// (then tensor ranks, group by group of tokens), tokens in gradients of gathered keys (then context
// ranks, group by group of heads).
//
// Sums are f32 until their tree is complete.

#include <bit>

#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/grouped_linear.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"

namespace sherd::model {
namespace {

// Fused matrices, each of them in so many groups.
template <class Columns>
kernels::GroupedDepth in_groups(int groups, const std::vector<Columns>& fused) {
  kernels::GroupedDepth depth{.groups = groups, .ranges = {}};
  for (const auto& [first, count] : fused) depth.ranges.push_back({first, count, count / groups});
  return depth;
}

class CanonicalSums final : public Sums {
 public:
  explicit CanonicalSums(Computation& computation);

  void project_to_residual(const Affine& projection, const Tensor& x, std::int64_t inputs,
                           const Tensor& y_TD) override;
  void weight_gradient(const Affine& gradients, const ConstTensor& x, std::int64_t inputs,
                       const ConstTensor& dy, std::int64_t outputs) override;
  void input_gradient(const Tensor& weight, const InputGradient& args) override;
  // They are complete at once.
  Tensor d_read_TD() const override { return branch_TD(); }
  void finish_read_gradient() override {}
  void train_head(const HeadParameters& parameters, const HeadParameters& gradients,
                  const Pass& pass, const Tensor& normed_TD) override;
  void finish_head_gradient(const Tensor& normed_TD, const Tensor& dx_TD) override;

 private:
  Tensor sum_TD() const { return rows(activations_.sum_TD, shape_.tokens(), shape_.width); }
  Tensor sum_over_ranks(const char* what);
  void finish_sum(const Tensor& sum, const Tensor& bias, const Tensor& y, bool add);
  void train_chunks(const HeadParameters& parameters, const Tensor& gradient, const Pass& pass,
                    const Tensor& normed_TD, int first, int count);
  void train_chunk(const HeadParameters& parameters, const Tensor& gradient, const Pass& pass,
                   const Tensor& normed_TD, int chunk);
};

CanonicalSums::CanonicalSums(Computation& computation) : Sums(computation) {
  if (compute_.device() != DeviceKind::kCuda) return;
  throw UsageError(
      "sums can't be canonical on GPUs: set parallelism.sum_order to rank (--set "
      "parallelism.sum_order=rank), or run.device to cpu.");
}

// The sum in sum_TD, over tensor ranks: all rows of it, or this rank's.
Tensor CanonicalSums::sum_over_ranks(const char* what) {
  Tensor all = sum_TD();
  if (!shape_.sequence_parallel()) {
    collectives_.sum(what, all);
    return all;
  }
  // In training all ranks have as many rows; of a text that grows the last ones have zeros.
  const std::int64_t own = shape_.residual_tokens() * shape_.width, filled = all.numel;
  all.numel = shape_.part.degree * own;
  if (all.numel > filled) {
    kernels::fill_zero(compute_, all.part(filled, all.numel - filled));
  }
  const Tensor sum = all.part(shape_.part.rank * own, own);
  collectives_.reduce_scatter(what, all, sum);
  return sum;
}

void CanonicalSums::finish_sum(const Tensor& sum, const Tensor& bias, const Tensor& y, bool add) {
  kernels::grouped_finish(compute_, {shape_.residual_tokens(), shape_.width, sum, bias, y, add});
}

// This rank's groups of a projection whose inputs are cut, then the other ranks', then the bias.
void CanonicalSums::project_to_residual(const Affine& projection, const Tensor& x,
                                        std::int64_t inputs, const Tensor& y_TD) {
  kernels::grouped_forward(
      compute_, {.shape = {shape_.tokens(), inputs, shape_.width},
                 .depth = {shape_.part.sum_groups, {{0, inputs, inputs / shape_.part.sum_groups}}},
                 .x = x,
                 .w = projection.weight,
                 .sum = sum_TD(),
                 .workspace = activations_.workspace});
  finish_sum(sum_over_ranks("branch"), projection.bias, y_TD, false);
}

// The same of the gradient of what a projection reads whose outputs are cut.
void CanonicalSums::input_gradient(const Tensor& weight, const InputGradient& args) {
  if (args.fused.empty()) {  // the inputs are cut: what each rank needs is here
    return kernels::linear_backward_input(compute_, {{shape_.tokens(), args.inputs, args.outputs},
                                                     args.dy,
                                                     weight,
                                                     args.dx,
                                                     args.add,
                                                     activations_.workspace,
                                                     args.gelu_input});
  }
  kernels::grouped_backward_input(compute_, {.shape = {shape_.tokens(), shape_.width, args.outputs},
                                             .depth = in_groups(shape_.part.sum_groups, args.fused),
                                             .dy = args.dy,
                                             .w = weight,
                                             .sum = sum_TD(),
                                             .workspace = activations_.workspace});
  finish_sum(sum_over_ranks("gradient of what a branch read"), {}, args.dx, args.add);
}

// Head and loss, chunks of groups of tokens after one another, and of each the sequences. The ranks
// add up the gradients of the input of all chunks at once.
void CanonicalSums::train_head(const HeadParameters& parameters, const HeadParameters& gradients,
                               const Pass& pass, const Tensor& normed_TD) {
  train_chunks(parameters, gradients.weight, pass, normed_TD, 0, logits_chunks_of_groups(shape_));
}

// Chunks [first, first + count): a tree over them.
void CanonicalSums::train_chunks(const HeadParameters& parameters, const Tensor& gradient,
                                 const Pass& pass, const Tensor& normed_TD, int first, int count) {
  if (count == 1) return train_chunk(parameters, gradient, pass, normed_TD, first);
  const int half = count / 2;
  const auto level = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(half)) - 1);
  const Tensor upper = activations_.head_sums[level].tensor();
  train_chunks(parameters, gradient, pass, normed_TD, first, half);
  train_chunks(parameters, upper, pass, normed_TD, first + half, half);
  if (gradient) kernels::add(compute_, upper, gradient);
}

void CanonicalSums::train_chunk(const HeadParameters& parameters, const Tensor& gradient,
                                const Pass& pass, const Tensor& normed_TD, int chunk) {
  const std::int64_t D = shape_.width, V = shape_.vocab_size, S = shape_.seq_length;
  const int chunks = logits_chunks_of_groups(shape_);
  const std::int64_t positions = S / chunks, before = chunk * positions;  // of each sequence
  const std::int64_t all = shape_.sequences * positions, tokens = chunks == 1 ? all : positions;
  const Tensor logits_CV = activations_.logits_CV.tensor().part(0, all * V);
  for (std::int64_t done = 0; done < all; done += tokens) {
    const std::int64_t first = done / positions * S + before;
    const Tensor part = logits_CV.part(done * V, tokens * V);
    kernels::linear_forward(compute_, {{tokens, D, V},
                                       normed_TD.part(first * D, tokens * D),
                                       parameters.weight,
                                       {},
                                       part,
                                       activations_.workspace});
    c_.shares->chunk_losses(pass, first, tokens, part, true);
    kernels::grouped_backward_input(
        compute_, {.shape = {tokens, D, V},
                   .depth = {shape_.part.sum_groups, {{0, V, shape_.vocabulary_group()}}},
                   .dy = part,
                   .w = parameters.weight,
                   .sum = sum_TD().part(first * D, tokens * D),
                   .workspace = activations_.workspace});
  }
  if (!gradient) return;  // frozen
  kernels::TokenGroups groups = shape_.token_groups();
  groups.groups /= chunks;
  groups.positions = positions;
  const std::int64_t rows = (shape_.sequences - 1) * S + positions;
  kernels::grouped_backward_weight(compute_, {.shape = {all, D, V},
                                              .tokens = groups,
                                              .dy = logits_CV,
                                              .x = normed_TD.part(before * D, rows * D),
                                              .dw = gradient,
                                              .dbias = {},
                                              .workspace = activations_.workspace,
                                              .x_positions = S});
}

void CanonicalSums::finish_head_gradient(const Tensor&, const Tensor& dx_TD) {
  finish_sum(sum_over_ranks("gradient of the head's input"), {}, dx_TD, false);
}

void CanonicalSums::weight_gradient(const Affine& gradients, const ConstTensor& x,
                                    std::int64_t inputs, const ConstTensor& dy,
                                    std::int64_t outputs) {
  kernels::grouped_backward_weight(compute_, {{shape_.tokens(), inputs, outputs},
                                              shape_.token_groups(),
                                              dy,
                                              x,
                                              gradients.weight,
                                              gradients.bias,
                                              activations_.workspace});
}

}  // namespace

std::unique_ptr<Sums> make_canonical_sums(Computation& computation) {
  return std::make_unique<CanonicalSums>(computation);
}

}  // namespace sherd::model
