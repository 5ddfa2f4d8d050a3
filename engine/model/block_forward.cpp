// The forward of one block. The legend of shapes is in engine/model/shape.h, the sites in sites.h.

#include "engine/model/rng_sites.h"
#include "engine/model/transformer.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary.h"

namespace sherd::model {

void Transformer::project(const Affine& affine, const Tensor& x, std::int64_t inputs,
                          std::int64_t outputs, const Tensor& y, const Tensor& residual) {
  kernels::linear_forward(compute_, {.shape = {shape_.tokens(), inputs, outputs},
                                     .x = x,
                                     .w = affine.weight,
                                     .bias = affine.bias,
                                     .y = y,
                                     .workspace = activations_.workspace,
                                     .residual = residual,
                                     .interleaved = interleaved_});
  activations_.adapters.forward(compute_, affine, x, y, activations_.workspace);
}

// A norm's output: in the forward, and again in a selective backward.
void Transformer::normalise(const Affine& parameters, const Tensor& r_TD, const SiteTensors& site,
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

void Transformer::rotate(std::int64_t block, const Tensor& qkv_TE, bool inverse, const Pass& pass) {
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

void Transformer::block_forward(std::int64_t block, const BlockParameters& parameters,
                                const Pass& pass) {
  fill_block(block, parameters, pass);
  const Tensor out_TD = residual_TD(block + 1);
  Tensor middle_TD = kept_of(block)[SiteId::kMiddle].output;
  if (shape_.parallel()) {
    // A matmul may not write what it adds to, and where it adds, no branch needs its place.
    middle_TD =
        joins_in_matmul(branch_dropout(pass, mlp_branch_site(block))) ? branch_TD() : out_TD;
    join_attention(block, parameters, pass, middle_TD);
  }
  join_mlp(block, parameters, pass, middle_TD, out_TD);
}

// Whether branches are added to the residual stream in their last matmuls: nothing happens to them on the way, and the
// matmuls aren't one rank's part of a sum. A GPU saves two passes over memory by it (kernels/linear.h); on a CPU, and
// elsewhere, the norm behind an addition takes it along.
bool Transformer::joins_in_matmul(const kernels::Dropout& dropout) const {
  const AdapterShape& adapter = shape_.adapter;
  return kernels::is_cuda(compute_) && !dropout.active() && shape_.residual_scale == 1.0 &&
         !shape_.norm_behind() && !shape_.in_parts() && !adapter.has_target("attention.output") &&
         !adapter.has_target("mlp.down");
}

void Transformer::join(const Tensor& residual_TD, const Tensor& branch_TD,
                       const kernels::Dropout& dropout, const Tensor& out_TD) {
  kernels::residual_add(compute_, residual_TD, branch_TD, dropout, out_TD,
                        static_cast<float>(shape_.residual_scale));
}

// What the backward needs of the block: all but its output. With a norm behind the MLP branch, that
// branch too, which stays in branch_TD.
void Transformer::fill_block(std::int64_t block, const BlockParameters& parameters,
                             const Pass& pass) {
  filled_block_ = block;
  activations_.adapters.begin(shape_, block, pass);
  const BlockTensors kept = kept_of(block);
  fill_attention(block, parameters, pass);
  if (!shape_.parallel()) {
    fill_middle(block, parameters, pass);
  } else if (shape_.block_form == BlockForm::kParallel) {
    normalise(parameters[SiteId::kNorm2], kept.x_TD, kept[SiteId::kNorm2],
              kept[SiteId::kNorm2].output);
  }
  fill_mlp(block, parameters);
  if (shape_.norm_behind()) mlp_output(block, parameters, branch_TD());
}

// From the block's input to what the heads attended to.
void Transformer::fill_attention(std::int64_t block, const BlockParameters& parameters,
                                 const Pass& pass) {
  const BlockTensors kept = kept_of(block);
  const bool dealt = shape_.context.deals_heads();
  const std::int64_t tokens = shape_.tokens();
  const Tensor& kept_qkv = kept[SiteId::kQkv].output;
  const Tensor qkv_TE = dealt ? rows(activations_.deal_qkv, tokens, shape_.qkv_width()) : kept_qkv;
  if (shape_.norm_before()) {
    normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
              kept[SiteId::kNorm1].output);
  }
  project(parameters[SiteId::kQkv], all_rows("what a branch reads", attention_input(kept)),
          shape_.width, shape_.qkv_width(), qkv_TE);
  if (shape_.qk_norm != QkNorm::kNone) {
    const SiteTensors& site = kept[SiteId::kQueryNorm];
    const RowSums whole = sums_of_normalised_rows(qkv_TE);
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
  if (dealt) to_heads("queries, keys and values", HeadRows::kQkv, qkv_TE, kept_qkv);
  if (shape_.cached_positions > 0) {
    return kernels::cached_attention(
        compute_, {.shape = shape_.cached_attention(block),
                   .first = pass.first_position,
                   .count = shape_.tokens(),
                   .qkv = qkv_TE,
                   .cache = activations_.kv_cache[static_cast<std::size_t>(block)],
                   .out = kept[SiteId::kAttention].output,
                   .workspace = activations_.workspace});
  }
  if (shape_.context.passes_keys()) {
    return ring_forward(block, pass, kept_qkv, kept[SiteId::kAttention]);
  }
  const Tensor& attended_TD = kept[SiteId::kAttention].output;
  const Tensor out =
      dealt ? rows(activations_.deal_out, tokens, shape_.heads_width()) : attended_TD;
  kernels::attention_forward(compute_,
                             {.shape = shape_.attention(block),
                              .qkv = kept_qkv,
                              .dropout = attention_dropout(pass, attention_site(block)),
                              .out = out,
                              .lse = kept[SiteId::kAttention].statistic,
                              .workspace = activations_.workspace,
                              .documents = attention_documents(pass),
                              .keys_values = gather_keys_values("keys and values", kept_qkv)});
  if (dealt) to_positions("what heads attended to", HeadRows::kQueries, out, attended_TD);
}

// The attention branch as it joins the residual stream.
void Transformer::attention_output(std::int64_t block, const BlockParameters& parameters,
                                   const Tensor& branch_TD) {
  const BlockTensors kept = kept_of(block);
  finish_branch(parameters[SiteId::kAttentionOutput], kept[SiteId::kAttention].output,
                shape_.heads_width(), parameters[SiteId::kAttentionNorm],
                kept[SiteId::kAttentionNorm], branch_TD);
}

void Transformer::mlp_output(std::int64_t block, const BlockParameters& parameters,
                             const Tensor& branch_TD) {
  const BlockTensors kept = kept_of(block);
  finish_branch(parameters[SiteId::kDown], kept[SiteId::kActivation].output, shape_.ffn_width,
                parameters[SiteId::kMlpNorm], kept[SiteId::kMlpNorm], branch_TD);
}

void Transformer::finish_branch(const Affine& projection, const Tensor& x, std::int64_t inputs,
                                const Affine& norm, const SiteTensors& norm_site,
                                const Tensor& branch_TD) {
  const Tensor& projected_TD = shape_.norm_behind() ? norm_site.output : branch_TD;
  if (shape_.part.has_canonical_sums()) {
    project_in_groups(projection, x, inputs, projected_TD);
  } else {
    Affine own = projection;
    if (!shape_.part.adds_biases_of_sums()) own.bias = {};
    const Tensor addend_TD = all_rows_place(projected_TD);
    project(own, x, inputs, shape_.width, addend_TD);
    add_up_rows("branch", addend_TD, projected_TD);
  }
  if (shape_.norm_behind()) normalise(norm, projected_TD, norm_site, branch_TD);
}

void Transformer::join_attention(std::int64_t block, const BlockParameters& parameters,
                                 const Pass& pass, const Tensor& out_TD) {
  const BlockTensors kept = kept_of(block);
  const kernels::Dropout mask = branch_dropout(pass, attention_branch_site(block));
  if (joins_in_matmul(mask)) {
    return project(parameters[SiteId::kAttentionOutput], kept[SiteId::kAttention].output,
                   shape_.heads_width(), shape_.width, out_TD, kept.x_TD);
  }
  attention_output(block, parameters, branch_TD());
  join(kept.x_TD, branch_TD(), mask, out_TD);
}

// A branch with a norm behind it stands in branch_TD since the block was filled.
void Transformer::join_mlp(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                           const Tensor& residual_TD, const Tensor& out_TD) {
  const BlockTensors kept = kept_of(block);
  const kernels::Dropout mask = branch_dropout(pass, mlp_branch_site(block));
  if (joins_in_matmul(mask)) {
    return project(parameters[SiteId::kDown], kept[SiteId::kActivation].output, shape_.ffn_width,
                   shape_.width, out_TD, residual_TD);
  }
  if (!shape_.norm_behind()) mlp_output(block, parameters, branch_TD());
  join(residual_TD, branch_TD(), mask, out_TD);
}

// The middle of a sequential block, and the MLP's norm where there is one, which takes the addition along where the
// matmul didn't.
void Transformer::fill_middle(std::int64_t block, const BlockParameters& parameters,
                              const Pass& pass) {
  const BlockTensors kept = kept_of(block);
  const kernels::Dropout mask = branch_dropout(pass, attention_branch_site(block));
  const Tensor& middle_TD = kept[SiteId::kMiddle].output;
  const SiteTensors& norm = kept[SiteId::kNorm2];
  const Affine& weights = parameters[SiteId::kNorm2];
  const bool joined = joins_in_matmul(mask);
  if (joined || !shape_.norm_before()) join_attention(block, parameters, pass, middle_TD);
  if (!shape_.norm_before()) return;
  if (joined) return normalise(weights, middle_TD, norm, norm.output);
  attention_output(block, parameters, branch_TD());
  kernels::norm_forward(compute_, {.shape = shape_.norm_shape(),
                                   .residual = kept.x_TD,
                                   .branch = branch_TD(),
                                   .branch_dropout = mask,
                                   .weight = weights.weight,
                                   .bias = weights.bias,
                                   .residual_out = middle_TD,
                                   .y = norm.output,
                                   .mean = norm.mean,
                                   .rstd = norm.statistic,
                                   .branch_scale = static_cast<float>(shape_.residual_scale)});
}

void Transformer::fill_mlp(std::int64_t block, const BlockParameters& parameters) {
  const BlockTensors kept = kept_of(block);
  const Affine& up = parameters[SiteId::kUp];
  // Of a norm that both branches read, the rows are still there.
  const Tensor read_TD = shape_.block_form == BlockForm::kParallelOneNorm
                             ? all_rows_place(mlp_input(kept))
                             : all_rows("what a branch reads", mlp_input(kept));
  const Tensor& up_TU = kept[SiteId::kUp].output;
  const Tensor& activated_TF = kept[SiteId::kActivation].output;
  if (shape_.activated_in_matmul()) {
    kernels::linear_forward(compute_, {.shape = {shape_.tokens(), shape_.width, shape_.up_width()},
                                       .x = read_TD,
                                       .w = up.weight,
                                       .bias = up.bias,
                                       .y = activated_TF,
                                       .workspace = activations_.workspace,
                                       .gelu_input = up_TU,
                                       .interleaved = interleaved_});
    return;
  }
  project(up, read_TD, shape_.width, shape_.up_width(), up_TU);
  kernels::activation_forward(compute_, {shape_.activation_shape(), up_TU, activated_TF});
}

const Tensor& Transformer::attention_input(const BlockTensors& kept) const {
  return shape_.norm_before() ? kept[SiteId::kNorm1].output : kept.x_TD;
}

const Tensor& Transformer::mlp_input(const BlockTensors& kept) const {
  if (!shape_.norm_before()) return kept[SiteId::kMiddle].output;
  const bool shares = shape_.block_form == BlockForm::kParallelOneNorm;
  return kept[shares ? SiteId::kNorm1 : SiteId::kNorm2].output;
}

}  // namespace sherd::model
