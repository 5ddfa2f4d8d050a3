#include "engine/model/attention/latent.h"

#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/columns.h"
#include "kernels/latent_heads.h"
#include "kernels/norm.h"

namespace sherd::model {

Tensor LatentProjection::query() const {
  return rows(activations_.latent.query, shape_.tokens(), shape_.heads_width());
}

Tensor LatentProjection::keys_values() const {
  return rows(activations_.latent.keys_values, shape_.tokens(),
              shape_.latent.up_width(shape_.query_heads));
}

Tensor LatentProjection::place(const Buffer WaitingBuffers::*waits, const Buffer& scratch,
                               std::int64_t width) const {
  const Buffer& buffer = c_.puts_off != nullptr ? c_.puts_off->*waits : scratch;
  return rows(buffer, shape_.tokens(), width);
}

void LatentProjection::norm_forward(const Tensor& raw, const Affine& parameters,
                                    const SiteTensors& site, std::int64_t rank) {
  kernels::norm_forward(compute_, {.shape = shape_.latent_norm_shape(rank),
                                   .residual = raw,
                                   .branch = {},
                                   .branch_dropout = {},
                                   .weight = parameters.weight,
                                   .bias = {},
                                   .residual_out = {},
                                   .y = site.output,
                                   .mean = {},
                                   .rstd = site.statistic});
}

// In place: the gradient of the normalised latent becomes that of the latent.
void LatentProjection::norm_backward(const Tensor& raw, const Affine& parameters,
                                     const Affine& gradients, const SiteTensors& site,
                                     std::int64_t rank, const Tensor& d_raw) {
  const Affine own = norm_gradients(parameters, gradients);
  kernels::norm_backward(compute_, {.shape = shape_.latent_norm_shape(rank),
                                    .residual = raw,
                                    .mean = {},
                                    .rstd = site.statistic,
                                    .weight = parameters.weight,
                                    .dy = rows(activations_.latent.d_latent, shape_.tokens(), rank),
                                    .d_residual_out = {},
                                    .branch_dropout = {},
                                    .d_residual_in = d_raw,
                                    .d_branch = {},
                                    .dweight = own.weight,
                                    .dbias = {},
                                    .workspace = activations_.workspace});
  c_.shares->add_up_latent(gradients);
}

// The columns of kv_down before those of the rotated key.
Tensor LatentProjection::raw_kv_latent(const BlockTensors& kept) {
  const std::int64_t T = shape_.tokens(), C = shape_.latent.kv_rank;
  const Tensor raw = rows(activations_.latent.latent, T, C);
  kernels::move_columns(compute_, {T, shape_.latent.down_width(), 0, C},
                        kept[SiteId::kKvDown].output, {T, C, 0, C}, raw);
  return raw;
}

void LatentProjection::normalise_query(const BlockTensors& kept,
                                       const BlockParameters& parameters) {
  if (shape_.latent.query_rank == 0) return;
  norm_forward(kept[SiteId::kQueryDown].output, parameters[SiteId::kQueryLatentNorm],
               kept[SiteId::kQueryLatentNorm], shape_.latent.query_rank);
}

void LatentProjection::normalise_kv(const BlockTensors& kept, const BlockParameters& parameters) {
  norm_forward(raw_kv_latent(kept), parameters[SiteId::kKvLatentNorm], kept[SiteId::kKvLatentNorm],
               shape_.latent.kv_rank);
}

void LatentProjection::normalise_again(const BlockTensors& kept,
                                       const BlockParameters& parameters) {
  normalise_query(kept, parameters);
  normalise_kv(kept, parameters);
}

void LatentProjection::forward(const BlockTensors& kept, const BlockParameters& parameters,
                               const Tensor& x_TD, const Tensor& qkv_TE) {
  project_down(kept, parameters, x_TD);
  expand(kept, parameters, x_TD, qkv_TE);
}

Tensor LatentProjection::queries_and_latents(const BlockTensors& kept,
                                             const BlockParameters& parameters,
                                             const Tensor& x_TD) {
  project_down(kept, parameters, x_TD);
  normalise_again(kept, parameters);
  project_queries(kept, parameters, x_TD);
  return query();
}

void LatentProjection::project_down(const BlockTensors& kept, const BlockParameters& parameters,
                                    const Tensor& x_TD) {
  const LatentShape& latent = shape_.latent;
  if (latent.query_rank > 0) {
    project(parameters[SiteId::kQueryDown], x_TD, shape_.width, latent.query_rank,
            kept[SiteId::kQueryDown].output);
  }
  project(parameters[SiteId::kKvDown], x_TD, shape_.width, latent.down_width(),
          kept[SiteId::kKvDown].output);
}

void LatentProjection::project_queries(const BlockTensors& kept, const BlockParameters& parameters,
                                       const Tensor& x_TD) {
  const std::int64_t rank = shape_.latent.query_rank;
  project(parameters[SiteId::kLatentQuery], rank > 0 ? kept[SiteId::kQueryLatentNorm].output : x_TD,
          rank > 0 ? rank : shape_.width, shape_.heads_width(), query());
}

void LatentProjection::expand(const BlockTensors& kept, const BlockParameters& parameters,
                              const Tensor& x_TD, const Tensor& qkv_TE) {
  const LatentShape& latent = shape_.latent;
  normalise_again(kept, parameters);
  project_queries(kept, parameters, x_TD);
  project(parameters[SiteId::kKvUp], kept[SiteId::kKvLatentNorm].output, latent.kv_rank,
          latent.up_width(shape_.query_heads), keys_values());
  kernels::join_latent_heads(compute_, shape_.latent_heads(), query(), keys_values(),
                             kept[SiteId::kKvDown].output, qkv_TE);
}

void LatentProjection::backward(const BlockTensors& kept, const BlockParameters& parameters,
                                const BlockParameters& gradients, const ConstTensor& x_TD,
                                const Tensor& d_qkv_TE, const Tensor& d_read_TD) {
  const LatentShape& latent = shape_.latent;
  const LatentBuffers& scratch = activations_.latent;
  const std::int64_t T = shape_.tokens(), C = latent.kv_rank, up = keys_values().numel / T;
  const Tensor d_query = place(&WaitingBuffers::d_query, scratch.query, shape_.heads_width());
  const Tensor d_up = place(&WaitingBuffers::d_keys_values, scratch.keys_values, up);
  const Tensor d_down = place(&WaitingBuffers::d_kv_down, scratch.d_kv_down, latent.down_width());
  kernels::split_latent_heads(compute_, shape_.latent_heads(), d_qkv_TE, d_query, d_up, d_down);
  const Tensor d_latent = rows(scratch.d_latent, T, C);
  project_backward(parameters[SiteId::kKvUp], gradients[SiteId::kKvUp],
                   {kept[SiteId::kKvLatentNorm].output, d_up, C, up, d_latent},
                   &WaitingBuffers::d_keys_values);
  norm_backward(raw_kv_latent(kept), parameters[SiteId::kKvLatentNorm],
                gradients[SiteId::kKvLatentNorm], kept[SiteId::kKvLatentNorm], C, d_latent);
  kernels::move_columns(compute_, {T, C, 0, C}, d_latent, {T, latent.down_width(), 0, C}, d_down);
  InputGradient of_keys{x_TD, d_down, shape_.width, latent.down_width(), d_read_TD};
  InputGradient of_queries = queries_backward(kept, parameters, gradients, x_TD, d_query);
  of_queries.dx = d_read_TD;
  of_queries.add = true;
  const SiteId query = latent.query_rank > 0 ? SiteId::kQueryDown : SiteId::kLatentQuery;
  // Both matrices read x, whose place the gradient of x may take.
  weight_backward(parameters, gradients, SiteId::kKvDown, of_keys, &WaitingBuffers::d_kv_down);
  weight_backward(parameters, gradients, query, of_queries,
                  latent.query_rank > 0 ? &WaitingBuffers::d_query_down : &WaitingBuffers::d_query);
  project_backward_input(parameters[SiteId::kKvDown], gradients[SiteId::kKvDown], of_keys);
  project_backward_input(parameters[query], gradients[query], of_queries);
}

void LatentProjection::weight_backward(const BlockParameters& parameters,
                                       const BlockParameters& gradients, SiteId site,
                                       InputGradient args, const Buffer WaitingBuffers::*waits) {
  args.dx = {};
  project_backward(parameters[site], gradients[site], args, waits);
  if (leads_to_latents(site) && c_.puts_off == nullptr) c_.shares->add_up_latent(gradients[site]);
}

// What is left: the matrix that reads x, and its output's gradient.
InputGradient LatentProjection::queries_backward(const BlockTensors& kept,
                                                 const BlockParameters& parameters,
                                                 const BlockParameters& gradients,
                                                 const ConstTensor& x_TD, const Tensor& d_query) {
  const std::int64_t rank = shape_.latent.query_rank, heads = shape_.heads_width();
  if (rank == 0) return {x_TD, d_query, shape_.width, heads, {}};
  const LatentBuffers& scratch = activations_.latent;
  project_backward(parameters[SiteId::kLatentQuery], gradients[SiteId::kLatentQuery],
                   {kept[SiteId::kQueryLatentNorm].output, d_query, rank, heads,
                    rows(scratch.d_latent, shape_.tokens(), rank)},
                   &WaitingBuffers::d_query);
  const Tensor d_down = place(&WaitingBuffers::d_query_down, scratch.d_query_down, rank);
  norm_backward(kept[SiteId::kQueryDown].output, parameters[SiteId::kQueryLatentNorm],
                gradients[SiteId::kQueryLatentNorm], kept[SiteId::kQueryLatentNorm], rank, d_down);
  return {x_TD, d_down, shape_.width, rank, {}};
}

void LatentProjection::weight_gradients(std::int64_t block, const BlockTensors& kept,
                                        const BlockParameters& gradients, const ConstTensor& x_TD) {
  const LatentShape& latent = shape_.latent;
  const WaitingBuffers& waiting = c_.waiting_of(block);
  const auto gradient = [&](SiteId site, const ConstTensor& x, std::int64_t inputs,
                            const Buffer& dy, std::int64_t outputs) {
    c_.sums->weight_gradient(gradients[site], x, inputs, rows(dy, shape_.tokens(), outputs),
                             outputs);
  };
  gradient(SiteId::kKvUp, kept[SiteId::kKvLatentNorm].output, latent.kv_rank, waiting.d_keys_values,
           latent.up_width(shape_.query_heads));
  gradient(SiteId::kKvDown, x_TD, shape_.width, waiting.d_kv_down, latent.down_width());
  c_.shares->add_up_latent(gradients[SiteId::kKvDown]);
  if (latent.query_rank == 0) {
    return gradient(SiteId::kLatentQuery, x_TD, shape_.width, waiting.d_query,
                    shape_.heads_width());
  }
  gradient(SiteId::kLatentQuery, kept[SiteId::kQueryLatentNorm].output, latent.query_rank,
           waiting.d_query, shape_.heads_width());
  gradient(SiteId::kQueryDown, x_TD, shape_.width, waiting.d_query_down, latent.query_rank);
  c_.shares->add_up_latent(gradients[SiteId::kQueryDown]);
}

BlockTensors LatentProjection::with_padded_values(const BlockTensors& kept) const {
  BlockTensors padded = kept;
  if (shape_.latent.pads_values()) {
    padded[SiteId::kAttention].output =
        rows(activations_.latent.attended, shape_.tokens(), shape_.heads_width());
  }
  return padded;
}

void LatentProjection::take_values(const BlockTensors& kept) {
  if (!shape_.latent.pads_values()) return;
  kernels::take_values(compute_, shape_.latent_heads(),
                       with_padded_values(kept)[SiteId::kAttention].output,
                       kept[SiteId::kAttention].output);
}

Tensor LatentProjection::spread_values(const BlockTensors& kept, const Tensor& d_attended_TD) {
  if (!shape_.latent.pads_values()) return d_attended_TD;
  const Tensor padded = rows(activations_.latent.d_attended, shape_.tokens(), shape_.heads_width());
  kernels::spread_values(compute_, shape_.latent_heads(), d_attended_TD, padded);
  kernels::spread_values(compute_, shape_.latent_heads(), kept[SiteId::kAttention].output,
                         with_padded_values(kept)[SiteId::kAttention].output);
  return padded;
}

}  // namespace sherd::model
