#include "engine/model/attention/attention.h"

#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary.h"

namespace sherd::model {

Attention::Attention(Computation& computation)
    : Part(computation),
      latent_(computation),
      absorbed_(computation),
      sequences_(make_sequences(computation)) {}

void Attention::rotate(std::int64_t block, const Tensor& qkv_TE, std::int64_t kv_heads,
                       bool inverse, const Pass& pass) {
  const int table = shape_.layer(block).rotary;
  if (table < 0) return;
  const std::int64_t head_width = shape_.head_width();
  const std::int64_t width = (shape_.query_heads + 2 * kv_heads) * head_width;
  const Tensor& table_SK = activations_.rotary_SK[static_cast<std::size_t>(table)].tensor();
  for_each_run(pass, [&](std::int64_t token, std::int64_t position, std::int64_t count) {
    const std::int64_t first = first_table_row(pass) + position;
    const std::int64_t sequences = count == shape_.tokens() ? shape_.sequences : 1;
    kernels::rotary(
        compute_, {.sequences = sequences,
                   .positions = count / sequences,
                   .query_heads = shape_.query_heads,
                   .kv_heads = kv_heads,
                   .head_width = head_width,
                   .table = table_SK.part(first * head_width, table_SK.numel - first * head_width),
                   .qkv = qkv_TE.part(token * width, count * width),
                   .inverse = inverse,
                   .token_positions = pass.documents.positions,
                   .queries_only = !shape_.rotary[static_cast<std::size_t>(table)].rotates()});
  });
}

const Tensor& Attention::input(const BlockTensors& kept) const {
  return shape_.norm_before() ? kept[SiteId::kNorm1].output : kept.x_TD;
}

bool Attention::norm_follows_rotation() const {
  return shape_.qk_norm == QkNorm::kHeadAfterRotary || shape_.qk_norm == QkNorm::kRotated;
}

bool Attention::is_latent(std::int64_t block) const {
  return shape_.layer(block).attention == AttentionKind::kLatent;
}

void Attention::project_heads(std::int64_t block, const BlockTensors& kept,
                              const BlockParameters& parameters, const Tensor& x_TD,
                              const Tensor& qkv_TE) {
  if (is_latent(block)) return latent_.forward(kept, parameters, x_TD, qkv_TE);
  project(parameters[SiteId::kQkv], x_TD, shape_.width, shape_.qkv_width(), qkv_TE);
}

void Attention::normalise_heads(std::int64_t block, const BlockTensors& kept,
                                const BlockParameters& parameters, const Tensor& qkv_TE) {
  if (!shape_.normalises_heads(block)) return;
  const SiteTensors& site = kept[SiteId::kQueryNorm];
  const RowSums whole = c_.shares->sums_of_normalised_rows(qkv_TE);
  kernels::qk_norm_forward(compute_, {.shape = shape_.qk_norm_shape(),
                                      .qkv = qkv_TE,
                                      .query_weight = parameters[SiteId::kQueryNorm].weight,
                                      .key_weight = parameters[SiteId::kKeyNorm].weight,
                                      .raw = site.output,
                                      .mean = site.mean,
                                      .rstd = site.statistic,
                                      .row_sums = whole.sums,
                                      .row_squares = whole.squares});
}

void Attention::attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                       const Tensor& qkv_TE) {
  if (!is_latent(block)) return sequences_->attend(block, kept, pass, qkv_TE);
  sequences_->attend(block, latent_.with_padded_values(kept), pass, qkv_TE);
  latent_.take_values(kept);
}

void Attention::forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass) {
  BlockTensors kept = c_.kept_of(block);
  kept.sinks = parameters[SiteId::kSinks].weight;
  const Tensor qkv_TE = sequences_->qkv_place(kept[SiteId::kQkv].output);
  if (shape_.norm_before()) {
    normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
              kept[SiteId::kNorm1].output);
  }
  const Tensor x_TD = all_rows("what a branch reads", input(kept));
  if (shape_.is_absorbed(block)) return attend_to_latents(block, kept, parameters, pass, x_TD);
  project_heads(block, kept, parameters, x_TD, qkv_TE);
  const bool after_rotary = norm_follows_rotation();
  if (after_rotary) rotate(block, qkv_TE, false, pass);
  normalise_heads(block, kept, parameters, qkv_TE);
  if (!after_rotary) rotate(block, qkv_TE, false, pass);
  attend(block, kept, pass, qkv_TE);
}

void Attention::attend_to_latents(std::int64_t block, const BlockTensors& kept,
                                  const BlockParameters& parameters, const Pass& pass,
                                  const Tensor& x_TD) {
  const Tensor packed_TE =
      absorbed_.pack(kept, latent_.queries_and_latents(kept, parameters, x_TD));
  rotate(block, packed_TE, 1, false, pass);
  sequences_->attend(block, absorbed_.with_attended(kept), pass,
                     absorbed_.absorb(kept, parameters, packed_TE));
  absorbed_.expand(kept, parameters);
}

void Attention::normalise_input_again(const BlockTensors& kept, const BlockParameters& parameters) {
  if (shape_.recompute != Recompute::kSelective || !shape_.norm_before()) return;
  normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
            kept[SiteId::kNorm1].output);
}

// With `selective`, latent attention makes its heads again.
void Attention::attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                                const Tensor& d_attended_TD, const Tensor& d_qkv_TE) {
  if (!is_latent(block)) {
    return sequences_->attend_backward(block, kept, pass, d_attended_TD, d_qkv_TE);
  }
  sequences_->attend_backward(block, latent_.with_padded_values(kept), pass,
                              latent_.spread_values(kept, d_attended_TD), d_qkv_TE);
}

void Attention::project_heads_backward(std::int64_t block, const BlockTensors& kept,
                                       const BlockParameters& parameters,
                                       const BlockParameters& gradients, const Tensor& d_qkv_TE,
                                       const Tensor& d_read_TD) {
  const ConstTensor x_TD = read_again(input(kept));
  if (is_latent(block)) {
    return latent_.backward(kept, parameters, gradients, x_TD, d_qkv_TE, d_read_TD);
  }
  InputGradient qkv{x_TD, d_qkv_TE, shape_.width, shape_.qkv_width(), d_read_TD};
  qkv.add = shape_.block_form == BlockForm::kParallelOneNorm;  // to the MLP's
  qkv.dy_of_copies = c_.shares->dy_of_copies(d_qkv_TE);
  qkv.fused = c_.shares->qkv_columns();
  project_backward(parameters[SiteId::kQkv], gradients[SiteId::kQkv], qkv, &WaitingBuffers::d_qkv);
}

void Attention::backward(std::int64_t block, const BlockParameters& parameters,
                         const BlockParameters& gradients, const Pass& pass, const Tensor& d_out_TD,
                         const Tensor& d_read_TD) {
  BlockTensors kept = c_.kept_of(block);
  if (shape_.sinks) {
    kept.sinks = parameters[SiteId::kSinks].weight;
    kept.d_sinks = norm_gradients(parameters[SiteId::kSinks], gradients[SiteId::kSinks]).weight;
  }
  const std::int64_t width = shape_.attended_width();
  normalise_input_again(kept, parameters);
  const Tensor d_attended_TD = rows(activations_.d_narrow, shape_.tokens(), width);
  // A rank's own share of what copies have is made in place: the weight gradients need the whole.
  const bool waits_there =
      c_.puts_off != nullptr && c_.puts_off->d_qkv && !shape_.shares_kv_heads();
  const Tensor d_qkv_TE = rows(waits_there ? c_.puts_off->d_qkv : activations_.d_wide,
                               shape_.tokens(), shape_.qkv_width());
  project_backward(parameters[SiteId::kAttentionOutput], gradients[SiteId::kAttentionOutput],
                   {kept[SiteId::kAttention].output, d_out_TD, width, shape_.width, d_attended_TD},
                   &WaitingBuffers::d_attention_output);
  if (is_latent(block) && shape_.recompute == Recompute::kSelective) {
    make_heads_again(block, kept, parameters, pass);
  }
  attend_backward(block, kept, pass, d_attended_TD, d_qkv_TE);
  if (activations_.d_kv) c_.shares->add_up_key_values(d_qkv_TE);
  const bool after_rotary = norm_follows_rotation();
  if (!after_rotary) rotate(block, d_qkv_TE, true, pass);
  if (shape_.normalises_heads(block)) {
    c_.shares->qk_norm_backward(kept, parameters, gradients, d_qkv_TE);
  }
  if (after_rotary) rotate(block, d_qkv_TE, true, pass);
  project_heads_backward(block, kept, parameters, gradients, d_qkv_TE, d_read_TD);
}

// Latents and heads, which `selective` has given up; heads that context ranks have exchanged are
// kept.
void Attention::make_heads_again(std::int64_t block, const BlockTensors& kept,
                                 const BlockParameters& parameters, const Pass& pass) {
  if (shape_.context.is_cut()) return latent_.normalise_again(kept, parameters);
  const Tensor& qkv_TE = kept[SiteId::kQkv].output;
  latent_.expand(kept, parameters,
                 latent_.expands_input() ? all_rows("what a branch read", input(kept)) : Tensor{},
                 qkv_TE);
  rotate(block, qkv_TE, false, pass);
}

void Attention::weight_gradients(std::int64_t block, const BlockParameters& parameters,
                                 const BlockParameters& gradients) {
  const WaitingBuffers& waiting = c_.waiting_of(block);
  const BlockTensors kept = c_.kept_of(block);
  normalise_input_again(kept, parameters);
  const auto waited = [&](const Buffer& dy, std::int64_t outputs) {
    return rows(dy, shape_.tokens(), outputs);
  };
  c_.sums->weight_gradient(gradients[SiteId::kAttentionOutput], kept[SiteId::kAttention].output,
                           shape_.attended_width(),
                           waited(waiting.d_attention_output, shape_.width), shape_.width);
  const ConstTensor x_TD = read_again(input(kept));
  if (is_latent(block)) {
    if (shape_.recompute == Recompute::kSelective) latent_.normalise_again(kept, parameters);
    return latent_.weight_gradients(block, kept, gradients, x_TD);
  }
  c_.sums->weight_gradient(gradients[SiteId::kQkv], x_TD, shape_.width,
                           waited(waiting.d_qkv, shape_.qkv_width()), shape_.qkv_width());
}

}  // namespace sherd::model
