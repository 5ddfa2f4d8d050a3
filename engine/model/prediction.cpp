#include "engine/model/prediction.h"

#include <fmt/core.h>

#include <utility>

#include "kernels/columns.h"
#include "kernels/norm.h"
#include "kernels/token.h"

namespace sherd::model {

// Blocks' inputs and outputs follow those of the model, and so does what routers decide.
void Activations::acquire_predictions(const ModelShape& shape, const Acquire& acquire) {
  if (shape.mtp_layers == 0) return;
  const std::int64_t T = shape.tokens(), D = shape.width;
  routing.emplace_back();  // of the model's output
  for (std::int64_t i = shape.num_layers; i < shape.num_blocks(); ++i) {
    const std::string prefix = fmt::format("block.{}.", i);
    const auto kept = [&](const std::string& name, std::int64_t width, DType dtype) {
      return acquire({prefix + name, Category::kActivations, dtype, T * width, kForwardToBackward});
    };
    residual_TD.push_back(kept("residual", D, shape.dtype));
    residual_TD.push_back(kept("last_residual", D, shape.dtype));
    routing.push_back(shape.has_experts(i) ? acquire_routing(shape, prefix, acquire)
                                           : RoutingBuffers{});
    routing.emplace_back();
    PredictionBuffers of;
    of.hidden = kept("mtp.hidden", D, shape.dtype);
    of.embedded = kept("mtp.embedded", D, shape.dtype);
    of.joined = kept("mtp.joined", 2 * D, shape.dtype);
    of.output = kept("mtp.output", D, shape.dtype);
    const auto statistics = [&](const std::string& name) {
      SiteBuffers norm;
      if (shape.norm == kernels::NormKind::kLayerNorm) {
        norm.mean = kept(name + ".mean", 1, DType::kF32);
      }
      norm.statistic = kept(name + ".rstd", 1, DType::kF32);
      return norm;
    };
    of.embedding_norm = statistics("mtp.embedding_norm");
    of.hidden_norm = statistics("mtp.hidden_norm");
    of.norm = statistics("mtp.norm");
    predictions.push_back(std::move(of));
  }
  d_joined = acquire({"mtp.d_joined", Category::kActivations, shape.dtype, 2 * T * D, kBackward});
}

Tensor Prediction::rows_of(const Buffer& buffer) const {
  return rows(buffer, shape_.tokens(), shape_.width);
}

SiteTensors Prediction::statistics(const SiteBuffers& norm) const {
  return {{}, rows(norm.mean, shape_.tokens(), 1), rows(norm.statistic, shape_.tokens(), 1)};
}

Tensor Prediction::output_TD(std::int64_t index) const {
  return rows_of(buffers(index).output);
}

void Prediction::embed(const EmbeddingParameters& parameters, const Pass& pass) {
  for (std::int64_t i = 0; i < shape_.mtp_layers; ++i) {
    kernels::embedding_forward(compute_, {.sequences = shape_.sequences,
                                          .positions = shape_.seq_length,
                                          .width = shape_.width,
                                          .vocab_size = shape_.vocab_size,
                                          .tokens = pass.ahead[static_cast<std::size_t>(i)].inputs,
                                          .token_weight = parameters.token_weight,
                                          .position_weight = {},
                                          .dropout = {},
                                          .y = rows_of(buffers(i).embedded),
                                          .scale = static_cast<float>(shape_.embedding_scale),
                                          .rows = shape_.vocabulary_rows()});
  }
}

// The head computes it again, with the statistics that its backward reads.
void Prediction::begin(const HeadParameters& parameters) {
  const PredictionBuffers& first = buffers(0);
  normalise(parameters.final_norm, c_.residual_TD(shape_.num_layers), statistics(first.hidden_norm),
            rows_of(first.hidden));
}

// One half of the columns of [T, 2 D]: embeddings are the first.
void Prediction::move(const Tensor& columns, const Tensor& joined, int half, bool into) {
  const std::int64_t T = shape_.tokens(), D = shape_.width;
  const kernels::Columns all{T, D, 0, D}, of_joined{T, 2 * D, half * D, D};
  if (into) return kernels::move_columns(compute_, all, columns, of_joined, joined);
  kernels::move_columns(compute_, of_joined, joined, all, columns);
}

void Prediction::enter(std::int64_t index, const BlockParameters& parameters) {
  const PredictionBuffers& own = buffers(index);
  const Tensor hidden = rows_of(own.hidden),
               joined = rows(own.joined, shape_.tokens(), 2 * shape_.width);
  if (index > 0) {
    const Tensor before = output_TD(index - 1);
    compute_.copy(before.data, hidden.data, hidden.bytes());
  }
  normalise(parameters[SiteId::kMtpEmbeddingNorm], rows_of(own.embedded),
            statistics(own.embedding_norm), branch_TD());
  move(branch_TD(), joined, 0, true);
  normalise(parameters[SiteId::kMtpHiddenNorm], hidden, statistics(own.hidden_norm), branch_TD());
  move(branch_TD(), joined, 1, true);
  project(parameters[SiteId::kMtpProjection], joined, 2 * shape_.width, shape_.width,
          c_.input_TD(shape_.num_layers + index));
}

void Prediction::leave(std::int64_t index, const BlockParameters& parameters) {
  normalise(parameters[SiteId::kMtpNorm], c_.output_of(shape_.num_layers + index),
            statistics(buffers(index).norm), output_TD(index));
}

void Prediction::norm_backward(const Affine& parameters, const Affine& gradients,
                               const SiteBuffers& norm, const Tensor& residual, const Tensor& dy,
                               const Tensor& d_out, const Tensor& d_in) {
  const SiteTensors of = statistics(norm);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = residual,
                                    .mean = of.mean,
                                    .rstd = of.statistic,
                                    .weight = parameters.weight,
                                    .dy = dy,
                                    .d_residual_out = d_out,
                                    .branch_dropout = {},
                                    .d_residual_in = d_in,
                                    .d_branch = {},
                                    .dweight = gradients.weight,
                                    .dbias = gradients.bias,
                                    .workspace = activations_.workspace});
}

void Prediction::leave_backward(std::int64_t index, const BlockParameters& parameters,
                                const BlockParameters& gradients) {
  norm_backward(parameters[SiteId::kMtpNorm], gradients[SiteId::kMtpNorm], buffers(index).norm,
                c_.output_of(shape_.num_layers + index), output_TD(index), {}, residual_gradient());
}

void Prediction::enter_backward(std::int64_t index, const BlockParameters& parameters,
                                const BlockParameters& gradients) {
  const PredictionBuffers& own = buffers(index);
  const std::int64_t T = shape_.tokens(), D = shape_.width;
  const Tensor d_joined = rows(activations_.d_joined, T, 2 * D);
  project_backward(parameters[SiteId::kMtpProjection], gradients[SiteId::kMtpProjection],
                   {rows(own.joined, T, 2 * D), residual_gradient(), 2 * D, D, d_joined},
                   &WaitingBuffers::d_up);
  const Tensor embedded = rows_of(own.embedded), d_half = branch_TD();
  move(d_half, d_joined, 0, false);
  norm_backward(parameters[SiteId::kMtpEmbeddingNorm], gradients[SiteId::kMtpEmbeddingNorm],
                own.embedding_norm, embedded, d_half, {}, d_half);
  compute_.copy(d_half.data, embedded.data, embedded.bytes());
  move(d_half, d_joined, 1, false);
  const Tensor d_before = index > 0 ? output_TD(index - 1) : activations_.final_norm(shape_).output;
  norm_backward(parameters[SiteId::kMtpHiddenNorm], gradients[SiteId::kMtpHiddenNorm],
                own.hidden_norm, rows_of(own.hidden), d_half, d_before, d_before);
}

void Prediction::embed_backward(const EmbeddingParameters& gradients, const Pass& pass) {
  for (std::int64_t i = 0; i < shape_.mtp_layers; ++i) {
    kernels::embedding_backward(compute_, {.sequences = shape_.sequences,
                                           .positions = shape_.seq_length,
                                           .width = shape_.width,
                                           .vocab_size = shape_.vocab_size,
                                           .position_rows = 0,
                                           .tokens = pass.ahead[static_cast<std::size_t>(i)].inputs,
                                           .dy = rows_of(buffers(i).embedded),
                                           .dropout = {},
                                           .d_token_weight = gradients.token_weight,
                                           .d_position_weight = {},
                                           .add_to_token_gradient = true,
                                           .workspace = activations_.workspace,
                                           .scale = static_cast<float>(shape_.embedding_scale),
                                           .rows = shape_.vocabulary_rows()});
  }
}

}  // namespace sherd::model
