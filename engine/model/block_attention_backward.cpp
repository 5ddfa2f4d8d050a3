// The backward of a block's attention branch: projections, attention itself, norms of queries and keys.

#include "engine/model/rng_sites.h"
#include "engine/model/transformer.h"
#include "kernels/attention.h"
#include "kernels/qk_norm.h"

namespace sherd::model {

void Transformer::attention_backward(std::int64_t block, const BlockParameters& parameters,
                                     const BlockParameters& gradients, const Pass& pass,
                                     const BackwardReach& reach) {
  const BlockTensors kept = kept_of(block);
  const std::int64_t heads_width = shape_.heads_width();
  const Tensor d_attended_TD =
      activations_.d_narrow.tensor().part(0, shape_.tokens() * heads_width);
  // A rank's own share of what copies have is made in place: the weight gradients need the whole.
  const bool waits_there = puts_off_ != nullptr && !shape_.shares_kv_heads();
  const Tensor d_qkv_TE = rows(waits_there ? puts_off_->d_qkv : activations_.d_wide,
                               shape_.tokens(), shape_.qkv_width());
  if (shape_.recompute == Recompute::kSelective && shape_.norm_before()) {
    normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
              kept[SiteId::kNorm1].output);
  }
  const Tensor d_out_TD =
      projection_gradient(kept[SiteId::kAttentionNorm], parameters[SiteId::kAttentionNorm],
                          gradients[SiteId::kAttentionNorm]);
  const Tensor& attended_TD = kept[SiteId::kAttention].output;
  const Tensor d_kv_TN = rows(activations_.d_kv, shape_.tokens(), shape_.kv_gradient_width());
  project_backward(parameters[SiteId::kAttentionOutput], gradients[SiteId::kAttentionOutput],
                   {attended_TD, d_out_TD, heads_width, shape_.width, d_attended_TD},
                   &WaitingBuffers::d_attention_output);
  if (shape_.context.passes_keys()) {
    ring_backward(block, pass, kept[SiteId::kQkv].output, kept[SiteId::kAttention], d_attended_TD,
                  d_qkv_TE);
  } else {
    attention_gradients(block, kept, pass, d_attended_TD, d_qkv_TE);
  }
  if (d_kv_TN) add_up_key_values(d_qkv_TE);
  rotate(block, d_qkv_TE, true, pass);
  qk_norm_backward(kept, parameters, gradients, d_qkv_TE);
  InputGradient qkv{read_again(attention_input(kept)), d_qkv_TE, shape_.width, shape_.qkv_width(),
                    reach.input ? d_read_TD() : Tensor{}};
  qkv.add = shape_.block_form == BlockForm::kParallelOneNorm;  // to the MLP's
  if (shape_.shares_kv_heads()) qkv.dy_of_copies = d_qkv_TE;
  if (shape_.part.has_canonical_sums()) qkv.fused = qkv_columns();
  project_backward(parameters[SiteId::kQkv], gradients[SiteId::kQkv], qkv, &WaitingBuffers::d_qkv);
}

// Of queries, and of keys and values where the ranks' queries don't share these.
void Transformer::attention_gradients(std::int64_t block, const BlockTensors& kept,
                                      const Pass& pass, const Tensor& d_attended_TD,
                                      const Tensor& d_qkv_TE) {
  const std::int64_t heads_width = shape_.heads_width();
  const Tensor& attended_TD = kept[SiteId::kAttention].output;
  const Tensor d_kv_TN = rows(activations_.d_kv, shape_.tokens(), shape_.kv_gradient_width());
  const bool dealt = shape_.context.deals_heads(), gathered = shape_.context.gathers_keys();
  Tensor out = attended_TD, d_out = d_attended_TD, d_qkv = d_qkv_TE;
  if (dealt) {
    out = rows(activations_.deal_out, shape_.tokens(), heads_width);
    d_out = rows(activations_.deal_d_out, shape_.tokens(), heads_width);
    d_qkv = rows(activations_.deal_qkv, shape_.tokens(), shape_.qkv_width());
    to_heads("what heads attended to, again", HeadRows::kQueries, attended_TD, out);
    to_heads("gradient of what heads attended to", HeadRows::kQueries, d_attended_TD, d_out);
  }
  kernels::attention_backward(
      compute_,
      {.shape = shape_.attention(block),
       .qkv = kept[SiteId::kQkv].output,
       .out = out,
       .lse = kept[SiteId::kAttention].statistic,
       .dout = d_out,
       .dropout = attention_dropout(pass, attention_site(block)),
       .dqkv = d_qkv,
       .workspace = activations_.workspace,
       .documents = attention_documents(pass),
       .dkv = gathered ? activations_.d_keys_values.tensor() : d_kv_TN,
       .keys_values = gather_keys_values("keys and values, again", kept[SiteId::kQkv].output),
       .dkv_of_each_group = gathered});
  if (gathered) add_up_gathered_keys();
  if (dealt) {
    to_positions("gradients of queries, keys and values", HeadRows::kQkv, d_qkv, d_qkv_TE);
  }
}

void Transformer::qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                                   const BlockParameters& gradients, const Tensor& d_qkv_TE) {
  if (shape_.qk_norm == QkNorm::kNone) return;
  const SiteTensors& site = kept[SiteId::kQueryNorm];
  const Affine query =
      norm_gradients(parameters[SiteId::kQueryNorm], gradients[SiteId::kQueryNorm]);
  const Affine key = norm_gradients(parameters[SiteId::kKeyNorm], gradients[SiteId::kKeyNorm]);
  const bool shares = shape_.shares_norms_of_heads();
  const bool in_groups = shares && shape_.token_groups();
  const kernels::QkNormBackward args{
      .shape = shape_.qk_norm_shape(),
      .raw = site.output,
      .mean = site.mean,
      .rstd = site.statistic,
      .query_weight = parameters[SiteId::kQueryNorm].weight,
      .key_weight = parameters[SiteId::kKeyNorm].weight,
      .dqkv = d_qkv_TE,
      .d_query_weight = in_groups ? norm_sums_of_groups(0) : query.weight,
      .d_key_weight = in_groups ? norm_sums_of_groups(1) : key.weight,
      .workspace = activations_.workspace,
      .row_sums = rows(activations_.row_sums_4T, shape_.tokens(), 4),
      .of_each_group = in_groups};
  if (shape_.cuts_normalised_rows()) add_up_row_gradients(args);
  kernels::qk_norm_backward(compute_, args);
  if (!shares) return;
  // Frozen ones have gradients that nobody reads.
  const auto if_trained = [&](SiteId norm, const Tensor& sums) {
    return gradients[norm].weight ? sums : Tensor{};
  };
  add_up_norms_of_heads(if_trained(SiteId::kQueryNorm, args.d_query_weight),
                        if_trained(SiteId::kKeyNorm, args.d_key_weight));
  if (in_groups) add_groups_of_norms(query, key);
}

}  // namespace sherd::model
