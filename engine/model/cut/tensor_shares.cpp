#include "engine/model/cut/tensor_shares.h"

#include <algorithm>

#include "engine/model/cut/sums.h"
#include "kernels/columns.h"
#include "kernels/cut_cross_entropy.h"
#include "kernels/pointwise.h"
#include "kernels/qk_norm.h"
#include "kernels/token.h"
#include "kernels/token_groups.h"

namespace sherd::model {

// Of a key/value head of which there are copies, the share of this one: the sum over ranks has each
// column once.
std::vector<OutputColumns> TensorShares::qkv_columns() const {
  const std::int64_t queries = shape_.heads_width(), keys = shape_.kv_heads * shape_.head_width();
  const std::int64_t own = keys / shape_.part.kv_copies, before = shape_.part.kv_copy * own;
  return {{0, queries}, {queries + before, own}, {queries + keys + before, own}};
}

std::vector<OutputColumns> TensorShares::up_columns(std::int64_t block) const {
  const std::int64_t F = shape_.ffn_width_of(block);
  if (!shape_.gated()) return {{0, F}};
  return {{0, F}, {F, F}};
}

// Not in evaluations, which form no gradient.
kernels::ZLoss TensorShares::z_loss(std::int64_t first, std::int64_t tokens, bool gradient) const {
  if (!gradient || shape_.z_loss == 0.0) return {};
  return {static_cast<float>(shape_.z_loss),
          activations_.further_losses_T.tensor().part(first, tokens)};
}

Tensor TensorShares::losses_of(const Pass& pass) const {
  return pass.losses ? pass.losses : activations_.losses_T.tensor();
}

kernels::Teacher TensorShares::teacher(const Pass& pass, std::int64_t first, std::int64_t tokens,
                                       bool gradient) const {
  const std::int64_t top = shape_.teacher.top;
  if (!gradient || top == 0) return {};
  return {.form = shape_.teacher,
          .ids = pass.teacher_ids.part(first * top, tokens * top),
          .probabilities = pass.teacher_probabilities.part(first * top, tokens * top),
          .divergences = activations_.further_losses_T.tensor().part(first, tokens)};
}

kernels::QkNormBackward TensorShares::qk_norm_gradients(const BlockTensors& kept,
                                                        const BlockParameters& parameters,
                                                        const Affine& query, const Affine& key,
                                                        const Tensor& d_qkv_TE) const {
  const SiteTensors& site = kept[SiteId::kQueryNorm];
  return {.shape = shape_.qk_norm_shape(),
          .raw = site.output,
          .mean = site.mean,
          .rstd = site.statistic,
          .query_weight = parameters[SiteId::kQueryNorm].weight,
          .key_weight = parameters[SiteId::kKeyNorm].weight,
          .dqkv = d_qkv_TE,
          .d_query_weight = query.weight,
          .d_key_weight = key.weight,
          .workspace = activations_.workspace,
          .row_sums = rows(activations_.row_sums_4T, shape_.tokens(), 4)};
}

namespace {

ConstTensor weights_of(const Pass& pass, std::int64_t first, std::int64_t tokens) {
  return pass.token_weights ? pass.token_weights.part(first, tokens) : ConstTensor();
}

class WholeShares final : public TensorShares {
 public:
  using TensorShares::TensorShares;

  void chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                    const Tensor& logits_CV, bool gradient) override {
    kernels::cross_entropy(compute_, {.tokens = tokens,
                                      .vocab_size = shape_.vocab_size,
                                      .logits = logits_CV,
                                      .targets = pass.targets.part(first, tokens),
                                      .losses = losses_of(pass).part(first, tokens),
                                      .gradient = gradient,
                                      .grad_scale = pass.gradient_scale,
                                      .form = shape_.logits_form(),
                                      .z_loss = z_loss(first, tokens, gradient),
                                      .weights = weights_of(pass, first, tokens),
                                      .teacher = teacher(pass, first, tokens, gradient)});
  }
  RowSums sums_of_normalised_rows(const Tensor&) override { return {}; }
  void qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                        const BlockParameters& gradients, const Tensor& d_qkv_TE) override {
    const auto gradient_of = [&](SiteId norm) {
      return norm_gradients(parameters[norm], gradients[norm]);
    };
    kernels::qk_norm_backward(compute_,
                              qk_norm_gradients(kept, parameters, gradient_of(SiteId::kQueryNorm),
                                                gradient_of(SiteId::kKeyNorm), d_qkv_TE));
  }
  // Of context ranks' gradients, where there are any.
  void add_up_key_values(const Tensor& d_qkv_TE) override {
    const std::int64_t tokens = shape_.tokens(), columns = shape_.kv_gradient_width();
    kernels::store_columns(compute_, {tokens, shape_.qkv_width(), shape_.heads_width(), columns},
                           rows(activations_.d_kv, tokens, columns), d_qkv_TE);
  }
  Tensor dy_of_copies(const Tensor&) const override { return {}; }
  void leave_own_share(const Tensor&) override {}
  void add_up_adapters(const Affine&) override {}
  void add_up_latent(const Affine&) override {}
};

// Of a model that is cut, or whole with canonical sums, which are formed as if it were cut.
class CutShares final : public TensorShares {
 public:
  explicit CutShares(Computation& computation)
      : TensorShares(computation),
        cuts_rows_(shape_.cuts_normalised_rows()),
        shares_norms_(shape_.shares_norms_of_heads()),
        has_copies_(shape_.shares_kv_heads()),
        is_canonical_(shape_.part.has_canonical_sums()) {}

  void chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                    const Tensor& logits_CV, bool gradient) override;
  RowSums sums_of_normalised_rows(const Tensor& qkv_TE) override;
  void qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                        const BlockParameters& gradients, const Tensor& d_qkv_TE) override;
  void add_up_key_values(const Tensor& d_qkv_TE) override;
  // Canonical sums take each rank's own columns instead (qkv_columns).
  Tensor dy_of_copies(const Tensor& d_qkv_TE) const override {
    return has_copies_ && !is_canonical_ ? d_qkv_TE : Tensor{};
  }
  void leave_own_share(const Tensor& d_qkv_TE) override;
  void add_up_adapters(const Affine& gradients) override;
  void add_up_latent(const Affine& gradients) override {
    if (gradients.weight) collectives_.sum("gradient of latents", gradients.weight);
  }

 private:
  void add_up_row_gradients(const kernels::QkNormBackward& args);
  void add_up_norms_of_heads(const Tensor& d_query_weight, const Tensor& d_key_weight);
  Tensor norm_sums_of_groups(int of_keys) const;
  void add_groups_of_norms(const Affine& query, const Affine& key);

  const bool cuts_rows_, shares_norms_, has_copies_, is_canonical_;
};

void CutShares::chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                             const Tensor& logits_CV, bool gradient) {
  const int num_ranks = shape_.part.degree;
  kernels::CutCrossEntropy args{.tokens = tokens,
                                .num_rows = shape_.vocab_size,
                                .rows = {shape_.part.first_token, shape_.whole_vocab_size()},
                                .num_ranks = num_ranks,
                                .rank = shape_.part.rank,
                                .logits = logits_CV,
                                .targets = pass.targets.part(first, tokens),
                                .maxima = rows(activations_.loss_maxima_RC, tokens, num_ranks),
                                .sums = {},
                                .losses = losses_of(pass).part(first, tokens),
                                .gradient = gradient,
                                .grad_scale = pass.gradient_scale,
                                .form = shape_.logits_form(),
                                .groups = std::max(1, shape_.part.sum_groups),
                                .rows_of_a_group = shape_.vocabulary_group(),
                                .z_loss = z_loss(first, tokens, gradient),
                                .weights = weights_of(pass, first, tokens),
                                .teacher = teacher(pass, first, tokens, gradient)};
  args.sums = rows(activations_.loss_sums_NC, tokens, args.num_sums());
  kernels::logit_maxima(compute_, args);
  collectives_.gather("largest logits", args.maxima);
  kernels::exponential_sums(compute_, args);
  collectives_.sum("sums of the loss", args.sums);
  kernels::cut_cross_entropy(compute_, args);
}

// Copies of a key head are counted once.
RowSums CutShares::sums_of_normalised_rows(const Tensor& qkv_TE) {
  if (!cuts_rows_) return {};
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

void CutShares::qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                                 const BlockParameters& gradients, const Tensor& d_qkv_TE) {
  const Affine query =
      norm_gradients(parameters[SiteId::kQueryNorm], gradients[SiteId::kQueryNorm]);
  const Affine key = norm_gradients(parameters[SiteId::kKeyNorm], gradients[SiteId::kKeyNorm]);
  kernels::QkNormBackward args = qk_norm_gradients(kept, parameters, query, key, d_qkv_TE);
  args.of_each_group = shares_norms_ && is_canonical_;
  if (args.of_each_group) {
    args.d_query_weight = norm_sums_of_groups(0);
    args.d_key_weight = norm_sums_of_groups(1);
  }
  if (cuts_rows_) add_up_row_gradients(args);
  kernels::qk_norm_backward(compute_, args);
  if (!shares_norms_) return;
  // Frozen ones have gradients that nobody reads.
  const auto if_trained = [&](SiteId norm, const Tensor& sums) {
    return gradients[norm].weight ? sums : Tensor{};
  };
  add_up_norms_of_heads(if_trained(SiteId::kQueryNorm, args.d_query_weight),
                        if_trained(SiteId::kKeyNorm, args.d_key_weight));
  if (args.of_each_group) add_groups_of_norms(query, key);
}

void CutShares::add_up_row_gradients(const kernels::QkNormBackward& args) {
  kernels::qk_norm_backward_sums(compute_, args);
  const std::int64_t T = shape_.tokens();
  if (shape_.part.kv_copy > 0) kernels::fill_zero(compute_, args.row_sums.part(2 * T, 2 * T));
  collectives_.sum("gradients of rows of queries and keys", args.row_sums);
}

// A norm's weights serve the heads of all ranks. Copies of a key head are counted once.
void CutShares::add_up_norms_of_heads(const Tensor& d_query_weight, const Tensor& d_key_weight) {
  if (d_query_weight) collectives_.sum("gradient of the query norm", d_query_weight);
  if (!d_key_weight) return;  // frozen
  if (shape_.part.kv_copy > 0) kernels::fill_zero(compute_, d_key_weight);
  collectives_.sum("gradient of the key norm", d_key_weight);
}

// Of the norm of queries or keys: its sums over groups of tokens.
Tensor CutShares::norm_sums_of_groups(int of_keys) const {
  const std::int64_t numel = shape_.token_groups().groups * shape_.head_width();
  return activations_.qk_norm_sums.tensor().part(of_keys * numel, numel);
}

void CutShares::add_groups_of_norms(const Affine& query, const Affine& key) {
  for (const int of_keys : {0, 1}) {
    const Tensor sums = norm_sums_of_groups(of_keys);
    std::vector<Tensor> terms;
    for (int group = 0; group < shape_.token_groups().groups; ++group) {
      terms.push_back(sums.part(group * shape_.head_width(), shape_.head_width()));
    }
    c_.sums->add_as_tree(terms, of_keys == 1 ? key.weight : query.weight);
  }
}

void CutShares::add_up_key_values(const Tensor& d_qkv_TE) {
  const std::int64_t tokens = shape_.tokens(), columns = shape_.kv_gradient_width();
  const Tensor d_kv_TN = rows(activations_.d_kv, tokens, columns);
  if (has_copies_) collectives_.sum_copies("gradients of keys and values", d_kv_TN);
  kernels::store_columns(compute_, {tokens, shape_.qkv_width(), shape_.heads_width(), columns},
                         d_kv_TN, d_qkv_TE);
}

void CutShares::leave_own_share(const Tensor& d_qkv_TE) {
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

void CutShares::add_up_adapters(const Affine& gradients) {
  for (const AdapterTensors& gradient : gradients.adapters) {
    const AdapterTarget& target = activations_.adapters.target_of(gradient);
    if (!target.cuts_inputs()) collectives_.sum("gradient of an adapter", gradient.a);
    if (!target.cuts_rows()) collectives_.sum("gradient of an adapter", gradient.b);
  }
}

}  // namespace

std::unique_ptr<TensorShares> make_tensor_shares(Computation& computation) {
  if (computation.shape.in_parts()) return std::make_unique<CutShares>(computation);
  return std::make_unique<WholeShares>(computation);
}

}  // namespace sherd::model
