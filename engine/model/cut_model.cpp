// What a model that is cut over tensor ranks does beside the equations of transformer.cpp and block_*.cpp:
// where a rank has a part only of a row, or of keys and values that others use too.

#include "engine/model/transformer.h"

#include <algorithm>

#include "kernels/columns.h"
#include "kernels/cut_cross_entropy.h"
#include "kernels/pointwise.h"
#include "kernels/qk_norm.h"

namespace sherd::model {
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
void Transformer::add_up_norms_of_heads(const Tensor& d_query_weight, const Tensor& d_key_weight) {
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
