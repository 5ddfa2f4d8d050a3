// The forward of one block; the backward is in block_backward.cpp. The legend of shapes is in
// engine/model/shape.h, the sites are in sites.h.

#include "engine/model/block.h"

#include "engine/model/cut/sums.h"
#include "engine/model/rng_sites.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace sherd::model {
namespace {

// Whether nothing happens to branches on their way into the residual stream but dropout, and their
// last matmuls aren't one rank's part of a sum.
bool joins_untouched(const ModelShape& shape) {
  return shape.residual_scale == 1.0 && !shape.norm_after() && !shape.in_parts() &&
         !shape.adapter.has_target("attention.output") && !shape.adapter.has_target("mlp.down");
}

}  // namespace

Block::Block(Computation& computation)
    : Part(computation),
      attention_(computation),
      mlp_(computation),
      mixture_(computation),
      may_join_in_matmul_(kernels::is_cuda(compute_) && joins_untouched(shape_)) {
  for (std::int64_t block = 0; block < shape_.num_blocks(); ++block) {
    reaches_.push_back(backward_reach(shape_, block));
  }
}

// Whether branches are added to the residual stream in their last matmuls. A GPU saves two passes
// over memory by it (kernels/linear.h); on a CPU, and elsewhere, the norm after an addition takes
// it along.
bool Block::joins_in_matmul(const kernels::Dropout& dropout) const {
  return may_join_in_matmul_ && !dropout.active();
}

// Experts' results are added up by a kernel of their own.
bool Block::mlp_joins_in_matmul(std::int64_t block, const kernels::Dropout& dropout) const {
  return joins_in_matmul(dropout) && !shape_.has_experts(block);
}

void Block::forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass) {
  fill(block, parameters, pass, false);
  const Tensor out_TD = c_.output_of(block);
  if (!shape_.has_mlp(block)) return join_attention(block, parameters, pass, out_TD);
  Tensor middle_TD = c_.kept_of(block)[SiteId::kMiddle].output;
  if (shape_.parallel()) {
    // A matmul may not write what it adds to, and where it adds, no branch needs its place.
    middle_TD = mlp_joins_in_matmul(block, branch_dropout(pass, mlp_branch_site(block)))
                    ? branch_TD()
                    : out_TD;
    join_attention(block, parameters, pass, middle_TD);
  }
  join_mlp(block, parameters, pass, middle_TD, out_TD);
}

void Block::join(const Tensor& residual_TD, const kernels::Dropout& dropout, const Tensor& out_TD) {
  kernels::residual_add(compute_, residual_TD, branch_TD(), dropout, out_TD,
                        static_cast<float>(shape_.residual_scale));
}

// What the backward needs of the block: all but its output. With a norm after the last branch, that
// branch too, which stays in branch_TD.
void Block::fill(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                 bool recomputes) {
  filled_block_ = block;
  activations_.adapters.begin(shape_, block, pass);
  const BlockTensors kept = c_.kept_of(block);
  attention_.forward(block, parameters, pass);
  if (!shape_.has_mlp(block)) {
    if (shape_.norm_after()) attention_output(block, parameters);
    return;
  }
  if (!shape_.parallel()) {
    fill_middle(block, parameters, pass);
  } else if (shape_.block_form == BlockForm::kParallel) {
    normalise(parameters[SiteId::kNorm2], kept.x_TD, kept[SiteId::kNorm2],
              kept[SiteId::kNorm2].output);
  }
  if (shape_.has_experts(block)) {
    mixture_.forward(block, parameters, pass, recomputes);
  } else {
    mlp_.forward(block, parameters);
  }
  if (shape_.norm_after()) mlp_output(block, parameters);
}

// Into branch_TD, through the norm after the branch if there is one. `project` writes the branch
// where it is told.
template <class Projection>
void Block::finish_branch(const Affine& norm, const SiteTensors& norm_site,
                          const Projection& project) {
  const Tensor projected_TD = shape_.norm_after() ? norm_site.output : branch_TD();
  project(projected_TD);
  if (shape_.norm_after()) normalise(norm, projected_TD, norm_site, branch_TD());
}

// The attention branch as it joins the residual stream.
void Block::attention_output(std::int64_t block, const BlockParameters& parameters) {
  const BlockTensors kept = c_.kept_of(block);
  finish_branch(parameters[SiteId::kAttentionNorm], kept[SiteId::kAttentionNorm],
                [&](const Tensor& out_TD) {
                  c_.sums->project_to_residual(parameters[SiteId::kAttentionOutput],
                                               kept[SiteId::kAttention].output,
                                               shape_.attended_width(), out_TD);
                });
}

void Block::mlp_output(std::int64_t block, const BlockParameters& parameters) {
  const BlockTensors kept = c_.kept_of(block);
  finish_branch(parameters[SiteId::kMlpNorm], kept[SiteId::kMlpNorm], [&](const Tensor& out_TD) {
    if (shape_.has_experts(block)) return mixture_.output(block, parameters, out_TD);
    c_.sums->project_to_residual(parameters[SiteId::kDown], kept[SiteId::kActivation].output,
                                 shape_.ffn_width_of(block), out_TD);
  });
}

void Block::join_attention(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                           const Tensor& out_TD) {
  const BlockTensors kept = c_.kept_of(block);
  const kernels::Dropout mask = branch_dropout(pass, attention_branch_site(block));
  if (joins_in_matmul(mask)) {
    return project(parameters[SiteId::kAttentionOutput], kept[SiteId::kAttention].output,
                   shape_.attended_width(), shape_.width, out_TD, kept.x_TD);
  }
  const bool is_filled = shape_.norm_after() && !shape_.has_mlp(block);
  if (!is_filled) attention_output(block, parameters);
  join(kept.x_TD, mask, out_TD);
}

// A branch with a norm after it is in branch_TD since the block was filled.
void Block::join_mlp(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                     const Tensor& residual_TD, const Tensor& out_TD) {
  const BlockTensors kept = c_.kept_of(block);
  const kernels::Dropout mask = branch_dropout(pass, mlp_branch_site(block));
  if (mlp_joins_in_matmul(block, mask)) {
    return project(parameters[SiteId::kDown], kept[SiteId::kActivation].output,
                   shape_.ffn_width_of(block), shape_.width, out_TD, residual_TD);
  }
  if (!shape_.norm_after()) mlp_output(block, parameters);
  join(residual_TD, mask, out_TD);
}

// The middle of a sequential block, and the MLP's norm where there is one, which takes the addition
// along where the matmul didn't.
void Block::fill_middle(std::int64_t block, const BlockParameters& parameters, const Pass& pass) {
  const BlockTensors kept = c_.kept_of(block);
  const kernels::Dropout mask = branch_dropout(pass, attention_branch_site(block));
  const Tensor& middle_TD = kept[SiteId::kMiddle].output;
  const SiteTensors& norm = kept[SiteId::kNorm2];
  const Affine& weights = parameters[SiteId::kNorm2];
  const bool joined = joins_in_matmul(mask);
  if (joined || !shape_.norm_before()) join_attention(block, parameters, pass, middle_TD);
  if (!shape_.norm_before()) return;
  if (joined) return normalise(weights, middle_TD, norm, norm.output);
  attention_output(block, parameters);
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

}  // namespace sherd::model
