// What a model that is cut over tensor ranks does beside the equations of transformer.cpp and block_*.cpp:
// where a rank has a part only of a row, or of keys and values that others use too.

#include "engine/model/transformer.h"

#include <algorithm>

#include "kernels/columns.h"
#include "kernels/cut_cross_entropy.h"
#include "kernels/grouped_linear.h"
#include "kernels/pointwise.h"
#include "kernels/qk_norm.h"

namespace sherd::model {
namespace {

// Fused matrices, each of them in so many groups.
template <class Columns>
kernels::GroupedDepth in_groups(int groups, const std::vector<Columns>& fused) {
  kernels::GroupedDepth depth{.groups = groups, .ranges = {}};
  for (const auto& [first, count] : fused) depth.ranges.push_back({first, count, count / groups});
  return depth;
}

}  // namespace

// Of a key/value head of which there are copies, the share of this one: the sum over ranks has each column once.
std::vector<Transformer::OutputColumns> Transformer::qkv_columns() const {
  const std::int64_t queries = shape_.heads_width(), keys = shape_.kv_heads * shape_.head_width();
  const std::int64_t own = keys / shape_.part.kv_copies, before = shape_.part.kv_copy * own;
  return {{0, queries}, {queries + before, own}, {queries + keys + before, own}};
}

std::vector<Transformer::OutputColumns> Transformer::up_columns() const {
  const std::int64_t F = shape_.ffn_width;
  if (!shape_.gated()) return {{0, F}};
  return {{0, F}, {F, F}};
}

// Canonical sums (tensor_cut.h): this rank's groups of a projection whose inputs are cut, then the other
// ranks', then the bias.
void Transformer::project_in_groups(const Affine& affine, const Tensor& x, std::int64_t inputs,
                                    const Tensor& y_TD) {
  const std::int64_t T = shape_.tokens(), D = shape_.width;
  kernels::grouped_forward(
      compute_, {.shape = {T, inputs, D},
                 .depth = {shape_.part.sum_groups, {{0, inputs, inputs / shape_.part.sum_groups}}},
                 .x = x,
                 .w = affine.weight,
                 .sum = sum_TD(),
                 .workspace = activations_.workspace});
  collectives_.sum("branch", sum_TD());
  kernels::grouped_finish(compute_, {T, D, sum_TD(), affine.bias, y_TD});
}

// The same of the gradient of what a projection reads whose outputs are cut.
void Transformer::sum_input_gradient(const Tensor& weight, const InputGradient& args) {
  const std::int64_t T = shape_.tokens(), D = shape_.width;
  kernels::grouped_backward_input(compute_, {.shape = {T, D, args.outputs},
                                             .depth = in_groups(shape_.part.sum_groups, args.fused),
                                             .dy = args.dy,
                                             .w = weight,
                                             .sum = sum_TD(),
                                             .workspace = activations_.workspace});
  collectives_.sum("gradient of what a branch read", sum_TD());
  kernels::grouped_finish(compute_, {T, D, sum_TD(), {}, args.dx, args.add});
}

// Of tokens [first, first + tokens); the ranks add up all of them at once.
void Transformer::head_input_gradient(const Tensor& weight, std::int64_t first, std::int64_t tokens,
                                      const Tensor& d_logits_CV) {
  const std::int64_t D = shape_.width, V = shape_.vocab_size;
  kernels::grouped_backward_input(
      compute_, {.shape = {tokens, D, V},
                 .depth = {shape_.part.sum_groups, {{0, V, shape_.vocabulary_group()}}},
                 .dy = d_logits_CV,
                 .w = weight,
                 .sum = sum_TD().part(first * D, tokens * D),
                 .workspace = activations_.workspace});
}

void Transformer::add_up_head_input_gradient(const Tensor& addend_TD, const Tensor& dx_TD) {
  if (!shape_.part.has_canonical_sums()) {
    return add_up_rows("gradient of the head's input", addend_TD, dx_TD);
  }
  collectives_.sum("gradient of the head's input", sum_TD());
  kernels::grouped_finish(compute_, {shape_.tokens(), shape_.width, sum_TD(), {}, dx_TD});
}

void Transformer::cut_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                             const Tensor& logits_CV, bool gradient) {
  const int num_ranks = shape_.part.degree;
  const kernels::CutCrossEntropy args{
      .tokens = tokens,
      .num_rows = shape_.vocab_size,
      .rows = {shape_.part.first_token, shape_.whole_vocab_size()},
      .num_ranks = num_ranks,
      .rank = shape_.part.rank,
      .logits = logits_CV,
      .targets = pass.targets.part(first, tokens),
      .maxima = rows(activations_.loss_maxima_RC, tokens, num_ranks),
      .sums = rows(activations_.loss_sums_2C, tokens, 2),
      .losses = losses().part(first, tokens),
      .gradient = gradient,
      .grad_scale = pass.gradient_scale,
      .form = shape_.logits_form(),
      .groups = std::max(1, shape_.part.sum_groups),
      .rows_of_a_group = shape_.vocabulary_group()};
  kernels::logit_maxima(compute_, args);
  collectives_.gather("largest logits", args.maxima);
  kernels::exponential_sums(compute_, args);
  collectives_.sum("sums of the loss", args.sums);
  kernels::cut_cross_entropy(compute_, args);
}

// What rows of queries and keys add up to over the ranks that have parts of them; empty if none does.
// Copies of a key head are counted once.
Transformer::RowSums Transformer::sums_of_normalised_rows(const Tensor& qkv_TE) {
  if (!shape_.cuts_normalised_rows()) return {};
  const std::int64_t T = shape_.tokens();
  const Tensor sums_2T = activations_.row_sums_4T.tensor().part(0, 2 * T);
  const Tensor squares_2T = activations_.row_sums_4T.tensor().part(2 * T, 2 * T);
  const auto add_up = [&](const ConstTensor& row_sums, const Tensor& out_2T) {
    kernels::qk_norm_sums(compute_, {shape_.qk_norm_shape(), qkv_TE, row_sums, out_2T});
    if (shape_.part.kv_copy > 0) kernels::fill_zero(compute_, out_2T.part(T, T));
    collectives_.sum("norms of queries and keys", out_2T);
  };
  const bool centred = shape_.norm == kernels::NormKind::kLayerNorm;
  if (centred) add_up({}, sums_2T);
  add_up(centred ? ConstTensor(sums_2T) : ConstTensor(), squares_2T);
  return {sums_2T, squares_2T};
}

void Transformer::add_up_row_gradients(const kernels::QkNormBackward& args) {
  kernels::qk_norm_backward_sums(compute_, args);
  const std::int64_t T = shape_.tokens();
  if (shape_.part.kv_copy > 0) kernels::fill_zero(compute_, args.row_sums.part(2 * T, 2 * T));
  collectives_.sum("gradients of rows of queries and keys", args.row_sums);
}

// A norm's weights serve the heads of all ranks. Copies of a key head are counted once.
void Transformer::add_up_norms_of_heads(const BlockParameters& gradients) {
  const Tensor& d_query_weight = gradients[SiteId::kQueryNorm].weight;
  const Tensor& d_key_weight = gradients[SiteId::kKeyNorm].weight;
  if (d_query_weight) collectives_.sum("gradient of the query norm", d_query_weight);
  if (!d_key_weight) return;  // frozen
  if (shape_.part.kv_copy > 0) kernels::fill_zero(compute_, d_key_weight);
  collectives_.sum("gradient of the key norm", d_key_weight);
}

// Of an adapter's two matrices one is whole on every rank, whose gradient is the sum of theirs (adapter.h).
void Transformer::add_up_adapters(const Affine& gradients) {
  if (!shape_.part.is_cut()) return;
  for (const AdapterTensors& gradient : gradients.adapters) {
    const bool cuts_inputs = activations_.adapters.target_of(gradient).cuts_inputs();
    collectives_.sum("gradient of an adapter", cuts_inputs ? gradient.b : gradient.a);
  }
}

// The gradients of keys and values are added up in f32 over the ranks whose queries read them, and
// rounded then: what follows is what one rank that holds all these queries would compute.
void Transformer::add_up_key_values(const Tensor& d_qkv_TE) {
  const std::int64_t tokens = shape_.tokens(), columns = shape_.kv_gradient_width();
  const Tensor d_kv_TN = rows(activations_.d_kv, tokens, columns);
  if (shape_.shares_kv_heads()) {
    collectives_.sum_copies("gradients of keys and values", d_kv_TN);
  }
  kernels::store_columns(compute_, {tokens, shape_.qkv_width(), shape_.heads_width(), columns},
                         d_kv_TN, d_qkv_TE);
}

// Behind the weights' product, each copy of a key/value head keeps its share of the head's columns, so
// that the sum of dx over ranks has each once.
void Transformer::leave_own_share(const Tensor& d_qkv_TE) {
  const std::int64_t K = shape_.head_width(), copies = shape_.part.kv_copies;
  const std::int64_t begin = shape_.part.kv_copy * K / copies;
  const std::int64_t end = (shape_.part.kv_copy + 1) * K / copies;
  for (std::int64_t head = 0; head < 2 * shape_.kv_heads; ++head) {
    const std::int64_t first = shape_.heads_width() + head * K;
    const auto clear = [&](std::int64_t from, std::int64_t to) {
      kernels::clear_columns(
          compute_, {shape_.tokens(), shape_.qkv_width(), first + from, to - from}, d_qkv_TE);
    };
    clear(0, begin);
    clear(end, K);
  }
}

}  // namespace sherd::model
