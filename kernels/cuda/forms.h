/// The CUDA form of every kernel; the equations and rules are in kernels/<stem>.h, and the
/// functions there have checked the arguments. Everything is enqueued on the stream without
/// waiting, unless stated otherwise. In a build without CUDA, kernels/no_cuda.cpp throws instead.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/block_codec.h"
#include "kernels/expert_rows.h"
#include "kernels/experts.h"
#include "kernels/kv_cache.h"
#include "kernels/latent_heads.h"
#include "kernels/linear.h"
#include "kernels/nf4.h"
#include "kernels/norm.h"
#include "kernels/orthogonalise.h"
#include "kernels/pointwise.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary.h"
#include "kernels/router.h"
#include "kernels/token.h"
#include "kernels/update.h"

namespace sherd::kernels::cuda {

// pointwise.cu, measure.cu
void fill_zero(Stream& stream, const Tensor& x);
void fill_constant(Stream& stream, const Tensor& out, float value);
void cast(Stream& stream, const ConstTensor& x, const Tensor& y);
void add(Stream& stream, const ConstTensor& x, const Tensor& accumulator);
void move_towards(Stream& stream, const ConstTensor& x, float weight, const Tensor& average);
void exchange(Stream& stream, const Tensor& a, const Tensor& b);
void residual_add(Stream& stream, const ConstTensor& residual, const ConstTensor& branch,
                  const Dropout& dropout, float scale, const Tensor& out);
void dropout_backward(Stream& stream, const ConstTensor& dy, const Dropout& dropout, float scale,
                      const Tensor& dx);
/// The CPU's bits.
void sum_of_squares(Stream& stream, const ConstTensor& x, const Tensor& out,
                    const Tensor& workspace);
void sum(Stream& stream, const ConstTensor& x, const Tensor& out, bool add);
/// Waits.
std::int64_t find_non_finite(Stream& stream, const ConstTensor& x);
/// Computed in f64 with the device's log and cos. After rounding to f32, an element may differ from
/// the CPU's in its last bit if the f64 value is close to a tie.
void fill_normal(Stream& stream, const Tensor& out, const RandomAddress& address,
                 std::int64_t first_element, float mean, float stddev);
void fill_uniform(Stream& stream, const Tensor& out, const RandomAddress& address,
                  std::int64_t first_element, float bound);
/// out[i] = ((in_0[i] + in_1[i]) + ...), at most kMaxSumInputs device buffers, for communicators.
inline constexpr int kMaxSumInputs = 64;
void sum_in_order(Stream& stream, const ConstTensor* inputs, int num_inputs, const Tensor& out,
                  bool onto_out);

/// For benchmarks: the median device time of what `work` enqueues. `before` is enqueued ahead of
/// each repetition and not counted; if it is long enough, it hides the launch. Waits.
double seconds_on_device(Stream& stream, int repeats, const std::function<void()>& before,
                         const std::function<void()>& work);

void activation_forward(Stream& stream, const ActivationForward& args);
void activation_backward(Stream& stream, const ActivationBackward& args);

void norm_forward(Stream& stream, const NormForward& args);
void norm_backward(Stream& stream, const NormBackward& args);
void qk_norm_sums(Stream& stream, const QkNormSums& args);
void qk_norm_backward_sums(Stream& stream, const QkNormBackward& args);
void qk_norm_forward(Stream& stream, const QkNormForward& args);
void qk_norm_backward(Stream& stream, const QkNormBackward& args);

/// `frequencies`: of the pairs of a head.
void rotary_table(Stream& stream, const Tensor& table, std::int64_t positions,
                  const std::vector<double>& frequencies, double factor);
void query_growth_table(Stream& stream, const Tensor& table, std::int64_t head_width,
                        const RotaryFrequencies& growth);
void rotary(Stream& stream, const Rotary& args);

/// A token outside the vocabulary traps; the data reader has checked tokens before.
void embedding_forward(Stream& stream, const EmbeddingForward& args);
void embedding_backward(Stream& stream, const EmbeddingBackward& args);
void cross_entropy(Stream& stream, const CrossEntropy& args);
void shape_logits(Stream& stream, const LogitsForm& form, const Tensor& logits);

void linear_forward(Stream& stream, const LinearForward& args);
void linear_backward_input(Stream& stream, const LinearBackwardInput& args);
void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args);

void attention_forward(Stream& stream, const AttentionForward& args);
/// attention_maxima.cu: only AttentionForward::maxima, in f32 whichever form computes the rest.
void attention_maxima(Stream& stream, const AttentionForward& args);
void attention_backward(Stream& stream, const AttentionBackward& args);
void join_attention_sinks(Stream& stream, const AttentionJoinSinks& args);
void attention_sinks_gradient(Stream& stream, const AttentionSinksGradient& args);
/// The CPU's bits.
void join_latent_heads(Stream& stream, const LatentHeads& shape, const ConstTensor& query,
                       const ConstTensor& keys_values, const ConstTensor& rotated_key,
                       const Tensor& qkv);
void split_latent_heads(Stream& stream, const LatentHeads& shape, const ConstTensor& d_qkv,
                        const Tensor& d_query, const Tensor& d_keys_values,
                        const Tensor& d_rotated_key);
void cached_attention(Stream& stream, const CachedAttention& args);

/// The CPU's bits.
void router_forward(Stream& stream, const RouterForward& args);
void router_losses(Stream& stream, const RouterLosses& args);
void router_totals(Stream& stream, const RouterTotals& args);
void router_correction(Stream& stream, const RouterCorrection& args);
void router_backward(Stream& stream, const RouterBackward& args);

/// Waits.
void expert_row_counts(Stream& stream, const ExpertRowCounts& args);
void experts_forward(Stream& stream, const ExpertsForward& args);
void experts_backward(Stream& stream, const ExpertsBackward& args);
void expert_order(Stream& stream, const ExpertOrder& args);
void expert_pack(Stream& stream, const ExpertPack& args);
void expert_choices_to_rows(Stream& stream, const ExpertChoices& args);
void expert_rows_to_choices(Stream& stream, const ExpertChoices& args);
void expert_combine(Stream& stream, const ExpertCombine& args);
void expert_rows_forward(Stream& stream, const ExpertRowsForward& args);
void expert_rows_activate(Stream& stream, const ExpertRowsActivate& args);
void expert_rows_backward(Stream& stream, const ExpertRowsBackward& args);
void expert_rows_gradients(Stream& stream, const ExpertRowsGradients& args);
/// Waits.
void expert_rank_counts(Stream& stream, const ExpertRankCounts& args);
/// The CPU's bits, and so have those below.
void expert_input_weights(Stream& stream, const ExpertInputWeights& args);
void experts_input_gradient(Stream& stream, const ExpertsInputGradient& args);
void gate_logits(Stream& stream, const GateLogits& args);
void gate_forward(Stream& stream, const GateForward& args);
void gate_backward(Stream& stream, const GateBackward& args);
void gate_weight_gradient(Stream& stream, const GateWeightGradient& args);

/// The CPU's bits.
void nf4_encode(Stream& stream, const ConstTensor& x, const Tensor& codes, const Tensor& scales);
void nf4_encode_scales(Stream& stream, const ConstTensor& scales, const Tensor& codes,
                       const Tensor& ranges);
void nf4_decode(Stream& stream, const Nf4Part& part, const Tensor& out);
void encode_blocks(Stream& stream, BlockFormat format, const ConstTensor& x, const Tensor& bytes);
/// `parts.first` has the bytes of all parts.
void sum_blocks(Stream& stream, BlockFormat format, const CodedParts& parts, const Tensor& out,
                bool onto_out);
void round_to_blocks(Stream& stream, BlockFormat format, const ConstTensor& x, const Tensor& out);

void orthogonalise(Stream& stream, const Orthogonalise& args);

void adam_update(Stream& stream, const AdamUpdate& args);
void sgd_update(Stream& stream, const SgdUpdate& args);
void lion_update(Stream& stream, const LionUpdate& args);
void lamb_moments(Stream& stream, const LambUpdate& args);
void lamb_norms(Stream& stream, const LambUpdate& args, const Tensor& sums);
void lamb_apply(Stream& stream, const LambUpdate& args, std::span<const float> ratios);
void lars_norms(Stream& stream, const LarsUpdate& args, const Tensor& sums);
void lars_apply(Stream& stream, const LarsUpdate& args, std::span<const float> ratios);
void muon_momentum(Stream& stream, const MuonUpdate& args);
void muon_apply(Stream& stream, const MuonUpdate& args, std::span<const float> ratios);

}  // namespace sherd::kernels::cuda
