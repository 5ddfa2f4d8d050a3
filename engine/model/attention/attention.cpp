#include "engine/model/attention/attention.h"

#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary.h"

namespace sherd::model {

Attention::Attention(Computation& computation)
    : Part(computation), sequences_(make_sequences(computation)) {}

void Attention::rotate(std::int64_t block, const Tensor& qkv_TE, bool inverse, const Pass& pass) {
  const int table = shape_.layer(block).rotary;
  if (table < 0) return;
  const std::int64_t head_width = shape_.head_width(), width = shape_.qkv_width();
  const Tensor& table_SK = activations_.rotary_SK[static_cast<std::size_t>(table)].tensor();
  for_each_run(pass, [&](std::int64_t token, std::int64_t position, std::int64_t count) {
    const std::int64_t first = first_table_row(pass) + position;
    const std::int64_t sequences = count == shape_.tokens() ? shape_.sequences : 1;
    kernels::rotary(compute_,
                    {sequences, count / sequences, shape_.query_heads, shape_.kv_heads, head_width,
                     table_SK.part(first * head_width, table_SK.numel - first * head_width),
                     qkv_TE.part(token * width, count * width), inverse, pass.documents.positions});
  });
}

const Tensor& Attention::input(const BlockTensors& kept) const {
  return shape_.norm_before() ? kept[SiteId::kNorm1].output : kept.x_TD;
}

void Attention::forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass) {
  const BlockTensors kept = c_.kept_of(block);
  const Tensor qkv_TE = sequences_->qkv_place(kept[SiteId::kQkv].output);
  if (shape_.norm_before()) {
    normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
              kept[SiteId::kNorm1].output);
  }
  project(parameters[SiteId::kQkv], all_rows("what a branch reads", input(kept)), shape_.width,
          shape_.qkv_width(), qkv_TE);
  if (shape_.qk_norm != QkNorm::kNone) {
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
  rotate(block, qkv_TE, false, pass);
  sequences_->attend(block, kept, pass, qkv_TE);
}

void Attention::normalise_input_again(const BlockTensors& kept, const BlockParameters& parameters) {
  if (shape_.recompute != Recompute::kSelective || !shape_.norm_before()) return;
  normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
            kept[SiteId::kNorm1].output);
}

void Attention::backward(std::int64_t block, const BlockParameters& parameters,
                         const BlockParameters& gradients, const Pass& pass, const Tensor& d_out_TD,
                         const Tensor& d_read_TD) {
  const BlockTensors kept = c_.kept_of(block);
  const std::int64_t heads_width = shape_.heads_width();
  normalise_input_again(kept, parameters);
  const Tensor d_attended_TD = rows(activations_.d_narrow, shape_.tokens(), heads_width);
  // A rank's own share of what copies have is made in place: the weight gradients need the whole.
  const bool waits_there = c_.puts_off != nullptr && !shape_.shares_kv_heads();
  const Tensor d_qkv_TE = rows(waits_there ? c_.puts_off->d_qkv : activations_.d_wide,
                               shape_.tokens(), shape_.qkv_width());
  project_backward(
      parameters[SiteId::kAttentionOutput], gradients[SiteId::kAttentionOutput],
      {kept[SiteId::kAttention].output, d_out_TD, heads_width, shape_.width, d_attended_TD},
      &WaitingBuffers::d_attention_output);
  sequences_->attend_backward(block, kept, pass, d_attended_TD, d_qkv_TE);
  if (activations_.d_kv) c_.shares->add_up_key_values(d_qkv_TE);
  rotate(block, d_qkv_TE, true, pass);
  if (shape_.qk_norm != QkNorm::kNone) {
    c_.shares->qk_norm_backward(kept, parameters, gradients, d_qkv_TE);
  }
  InputGradient qkv{read_again(input(kept)), d_qkv_TE, shape_.width, shape_.qkv_width(), d_read_TD};
  qkv.add = shape_.block_form == BlockForm::kParallelOneNorm;  // to the MLP's
  qkv.dy_of_copies = c_.shares->dy_of_copies(d_qkv_TE);
  qkv.fused = c_.shares->qkv_columns();
  project_backward(parameters[SiteId::kQkv], gradients[SiteId::kQkv], qkv, &WaitingBuffers::d_qkv);
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
                           shape_.heads_width(), waited(waiting.d_attention_output, shape_.width),
                           shape_.width);
  c_.sums->weight_gradient(gradients[SiteId::kQkv], read_again(input(kept)), shape_.width,
                           waited(waiting.d_qkv, shape_.qkv_width()), shape_.qkv_width());
}

}  // namespace sherd::model
