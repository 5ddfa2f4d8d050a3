// The twin of kernels/cuda in a program built without CUDA: a stream on a GPU can't exist here, so
// whoever comes is our bug or asked for a device that this program doesn't have.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/cut_cross_entropy.h"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/matmul_tuning.h"
#include "kernels/device.h"
#include "kernels/libraries.h"

namespace sherd::kernels::cuda {

void fill_zero(Stream&, const Tensor&) {
  no_cuda_kernel("fill_zero");
}
void fill_constant(Stream&, const Tensor&, float) {
  no_cuda_kernel("fill_constant");
}
void cast(Stream&, const ConstTensor&, const Tensor&) {
  no_cuda_kernel("cast");
}
void add(Stream&, const ConstTensor&, const Tensor&) {
  no_cuda_kernel("add");
}
void move_towards(Stream&, const ConstTensor&, float, const Tensor&) {
  no_cuda_kernel("move_towards");
}
void exchange(Stream&, const Tensor&, const Tensor&) {
  no_cuda_kernel("exchange");
}
void residual_add(Stream&, const ConstTensor&, const ConstTensor&, const Dropout&, float,
                  const Tensor&) {
  no_cuda_kernel("residual_add");
}
void dropout_backward(Stream&, const ConstTensor&, const Dropout&, float, const Tensor&) {
  no_cuda_kernel("dropout_backward");
}
void sum_of_squares(Stream&, const ConstTensor&, const Tensor&, const Tensor&) {
  no_cuda_kernel("sum_of_squares");
}
void sum(Stream&, const ConstTensor&, const Tensor&, bool) {
  no_cuda_kernel("sum");
}
std::int64_t find_non_finite(Stream&, const ConstTensor&) {
  no_cuda_kernel("find_non_finite");
}
void fill_normal(Stream&, const Tensor&, const RandomAddress&, std::int64_t, float, float) {
  no_cuda_kernel("fill_normal");
}
void router_forward(Stream&, const RouterForward&) {
  no_cuda_kernel("router_forward");
}
void router_losses(Stream&, const RouterLosses&) {
  no_cuda_kernel("router_losses");
}
void router_totals(Stream&, const RouterTotals&) {
  no_cuda_kernel("router_totals");
}
void router_correction(Stream&, const RouterCorrection&) {
  no_cuda_kernel("router_correction");
}
void router_backward(Stream&, const RouterBackward&) {
  no_cuda_kernel("router_backward");
}
void expert_row_counts(Stream&, const ExpertRowCounts&) {
  no_cuda_kernel("expert_row_counts");
}
void experts_forward(Stream&, const ExpertsForward&) {
  no_cuda_kernel("experts_forward");
}
void experts_backward(Stream&, const ExpertsBackward&) {
  no_cuda_kernel("experts_backward");
}
void expert_order(Stream&, const ExpertOrder&) {
  no_cuda_kernel("expert_order");
}
void expert_pack(Stream&, const ExpertPack&) {
  no_cuda_kernel("expert_pack");
}
void expert_choices_to_rows(Stream&, const ExpertChoices&) {
  no_cuda_kernel("expert_choices_to_rows");
}
void expert_rows_to_choices(Stream&, const ExpertChoices&) {
  no_cuda_kernel("expert_rows_to_choices");
}
void expert_combine(Stream&, const ExpertCombine&) {
  no_cuda_kernel("expert_combine");
}
void expert_rows_forward(Stream&, const ExpertRowsForward&) {
  no_cuda_kernel("expert_rows_forward");
}
void expert_rows_activate(Stream&, const ExpertRowsActivate&) {
  no_cuda_kernel("expert_rows_activate");
}
void expert_rows_backward(Stream&, const ExpertRowsBackward&) {
  no_cuda_kernel("expert_rows_backward");
}
void expert_rows_gradients(Stream&, const ExpertRowsGradients&) {
  no_cuda_kernel("expert_rows_gradients");
}
void expert_rank_counts(Stream&, const ExpertRankCounts&) {
  no_cuda_kernel("expert_rank_counts");
}
void expert_input_weights(Stream&, const ExpertInputWeights&) {
  no_cuda_kernel("expert_input_weights");
}
void experts_input_gradient(Stream&, const ExpertsInputGradient&) {
  no_cuda_kernel("experts_input_gradient");
}
void gate_logits(Stream&, const GateLogits&) {
  no_cuda_kernel("gate_logits");
}
void gate_forward(Stream&, const GateForward&) {
  no_cuda_kernel("gate_forward");
}
void gate_backward(Stream&, const GateBackward&) {
  no_cuda_kernel("gate_backward");
}
void gate_weight_gradient(Stream&, const GateWeightGradient&) {
  no_cuda_kernel("gate_weight_gradient");
}
void add_to_columns(Stream&, const Columns&, const ConstTensor&, float, const Tensor&) {
  no_cuda_kernel("add_to_columns");
}
void take_columns(Stream&, const Columns&, const ConstTensor&, float, const Tensor&) {
  no_cuda_kernel("take_columns");
}
void logit_maxima(Stream&, const CutCrossEntropy&) {
  no_cuda_kernel("logit_maxima");
}
void exponential_sums(Stream&, const CutCrossEntropy&) {
  no_cuda_kernel("exponential_sums");
}
void cut_cross_entropy(Stream&, const CutCrossEntropy&) {
  no_cuda_kernel("cut_cross_entropy");
}
void qk_norm_sums(Stream&, const QkNormSums&) {
  no_cuda_kernel("qk_norm_sums");
}
void qk_norm_backward_sums(Stream&, const QkNormBackward&) {
  no_cuda_kernel("qk_norm_backward_sums");
}
void store_columns(Stream&, const Columns&, const ConstTensor&, const Tensor&) {
  no_cuda_kernel("store_columns");
}
void clear_columns(Stream&, const Columns&, const Tensor&) {
  no_cuda_kernel("clear_columns");
}
void move_columns(Stream&, const Columns&, const ConstTensor&, const Columns&, const Tensor&) {
  no_cuda_kernel("move_columns");
}
void fill_uniform(Stream&, const Tensor&, const RandomAddress&, std::int64_t, float) {
  no_cuda_kernel("fill_uniform");
}
void sum_in_order(Stream&, const ConstTensor*, int, const Tensor&, bool) {
  no_cuda_kernel("sum_in_order");
}
double seconds_on_device(Stream&, int, const std::function<void()>&, const std::function<void()>&) {
  no_cuda_kernel("seconds_on_device");
}
device_common::MatmulPlace matmul_place(int) {
  no_cuda_kernel("matmul_place");
}
std::vector<device_common::TimedAlgorithm> time_algorithms(Stream&, const device_common::MatmulKey&,
                                                           const MatmulOperands&, const Tensor&,
                                                           const MatmulTiming&) {
  no_cuda_kernel("time_algorithms");
}
void activation_forward(Stream&, const ActivationForward&) {
  no_cuda_kernel("activation_forward");
}
void activation_backward(Stream&, const ActivationBackward&) {
  no_cuda_kernel("activation_backward");
}
void norm_forward(Stream&, const NormForward&) {
  no_cuda_kernel("norm_forward");
}
void norm_backward(Stream&, const NormBackward&) {
  no_cuda_kernel("norm_backward");
}
void qk_norm_forward(Stream&, const QkNormForward&) {
  no_cuda_kernel("qk_norm_forward");
}
void qk_norm_backward(Stream&, const QkNormBackward&) {
  no_cuda_kernel("qk_norm_backward");
}
void rotary_table(Stream&, const Tensor&, std::int64_t, const std::vector<double>&, double) {
  no_cuda_kernel("rotary_table");
}
void query_growth_table(Stream&, const Tensor&, std::int64_t, const RotaryFrequencies&) {
  no_cuda_kernel("query_growth_table");
}
void rotary(Stream&, const Rotary&) {
  no_cuda_kernel("rotary");
}
void embedding_forward(Stream&, const EmbeddingForward&) {
  no_cuda_kernel("embedding_forward");
}
void embedding_backward(Stream&, const EmbeddingBackward&) {
  no_cuda_kernel("embedding_backward");
}
void cross_entropy(Stream&, const CrossEntropy&) {
  no_cuda_kernel("cross_entropy");
}
void shape_logits(Stream&, const LogitsForm&, const Tensor&) {
  no_cuda_kernel("shape_logits");
}
void linear_forward(Stream&, const LinearForward&) {
  no_cuda_kernel("linear_forward");
}
void linear_backward_input(Stream&, const LinearBackwardInput&) {
  no_cuda_kernel("linear_backward_input");
}
void linear_backward_weight(Stream&, const LinearBackwardWeight&) {
  no_cuda_kernel("linear_backward_weight");
}
void attention_maxima(Stream&, const AttentionForward&) {
  no_cuda_kernel("attention_maxima");
}
void attention_forward(Stream&, const AttentionForward&) {
  no_cuda_kernel("attention_forward");
}
void attention_backward(Stream&, const AttentionBackward&) {
  no_cuda_kernel("attention_backward");
}
void join_attention_sinks(Stream&, const AttentionJoinSinks&) {
  no_cuda_kernel("join_attention_sinks");
}
void attention_sinks_gradient(Stream&, const AttentionSinksGradient&) {
  no_cuda_kernel("attention_sinks_gradient");
}
void join_latent_heads(Stream&, const LatentHeads&, const ConstTensor&, const ConstTensor&,
                       const ConstTensor&, const Tensor&) {
  no_cuda_kernel("join_latent_heads");
}
void split_latent_heads(Stream&, const LatentHeads&, const ConstTensor&, const Tensor&,
                        const Tensor&, const Tensor&) {
  no_cuda_kernel("split_latent_heads");
}
void nf4_encode(Stream&, const ConstTensor&, const Tensor&, const Tensor&) {
  no_cuda_kernel("nf4_encode");
}
void nf4_encode_scales(Stream&, const ConstTensor&, const Tensor&, const Tensor&) {
  no_cuda_kernel("nf4_encode_scales");
}
void nf4_decode(Stream&, const Nf4Part&, const Tensor&) {
  no_cuda_kernel("nf4_decode");
}
void encode_blocks(Stream&, BlockFormat, const ConstTensor&, const Tensor&) {
  no_cuda_kernel("encode_blocks");
}
void sum_blocks(Stream&, BlockFormat, const CodedParts&, const Tensor&, bool) {
  no_cuda_kernel("sum_blocks");
}
void round_to_blocks(Stream&, BlockFormat, const ConstTensor&, const Tensor&) {
  no_cuda_kernel("round_to_blocks");
}
void cached_attention(Stream&, const CachedAttention&) {
  no_cuda_kernel("cached_attention");
}
void orthogonalise(Stream&, const Orthogonalise&) {
  no_cuda_kernel("orthogonalise");
}
void adam_update(Stream&, const AdamUpdate&) {
  no_cuda_kernel("adam_update");
}
void sgd_update(Stream&, const SgdUpdate&) {
  no_cuda_kernel("sgd_update");
}
void lion_update(Stream&, const LionUpdate&) {
  no_cuda_kernel("lion_update");
}
void lamb_moments(Stream&, const LambUpdate&) {
  no_cuda_kernel("lamb_moments");
}
void lamb_norms(Stream&, const LambUpdate&, const Tensor&) {
  no_cuda_kernel("lamb_norms");
}
void lamb_apply(Stream&, const LambUpdate&, std::span<const float>) {
  no_cuda_kernel("lamb_apply");
}
void lars_norms(Stream&, const LarsUpdate&, const Tensor&) {
  no_cuda_kernel("lars_norms");
}
void lars_apply(Stream&, const LarsUpdate&, std::span<const float>) {
  no_cuda_kernel("lars_apply");
}
void muon_momentum(Stream&, const MuonUpdate&) {
  no_cuda_kernel("muon_momentum");
}
void muon_apply(Stream&, const MuonUpdate&, std::span<const float>) {
  no_cuda_kernel("muon_apply");
}

}  // namespace sherd::kernels::cuda

namespace sherd::kernels {

std::vector<LoadedLibrary> loaded_libraries() {
  return {};
}
std::string measured_matmuls(int) {
  return "";
}

}  // namespace sherd::kernels
