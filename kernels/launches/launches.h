/// What each kernel interface launches on a GPU: its kernels in order, the bytes of device memory
/// that each reads and writes, and the flops of those bounded by flops. Each operand counts once,
/// even if a second read hits a cache. Kernel arguments passed by value don't count.
///
/// Attention by cuDNN counts as one launch, whatever kernels cuDNN runs. With documents, queries
/// are assumed to see all keys before them, since only the data determine where documents end.
///
/// Experts' launches follow from the number of rows that each has; a ledger takes them to be equal.
///
/// tests/emulated_gpu/launches_test.cpp compares the number of launches of every interface with a
/// whole run's.
#pragma once

#include "core/ledger.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/block_codec.h"
#include "kernels/columns.h"
#include "kernels/cut_cross_entropy.h"
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

namespace sherd::kernels::launches {

Launches fill_zero(const Tensor& x);
Launches fill_constant(const Tensor& out, float value);
Launches cast(const ConstTensor& x, const Tensor& y);
Launches add(const ConstTensor& x, const Tensor& accumulator);
Launches move_towards(const ConstTensor& x, float weight, const Tensor& average);
Launches exchange(const Tensor& a, const Tensor& b);
Launches residual_add(const ConstTensor& residual, const ConstTensor& branch,
                      const Dropout& dropout, float scale, const Tensor& out);
Launches dropout_backward(const ConstTensor& dy, const Dropout& dropout, float scale,
                          const Tensor& dx);
Launches sum_of_squares(const ConstTensor& x, const Tensor& out, const Tensor& workspace);
Launches sum(const ConstTensor& x, const Tensor& out, bool add);
Launches fill_normal(const Tensor& out, const RandomAddress& address, std::int64_t first_element,
                     float mean, float stddev);
Launches fill_uniform(const Tensor& out, const RandomAddress& address, std::int64_t first_element,
                      float bound);

Launches activation_forward(const ActivationForward& args);
Launches activation_backward(const ActivationBackward& args);
Launches norm_forward(const NormForward& args);
Launches norm_backward(const NormBackward& args);
Launches qk_norm_sums(const QkNormSums& args);
Launches qk_norm_backward_sums(const QkNormBackward& args);
Launches qk_norm_forward(const QkNormForward& args);
Launches qk_norm_backward(const QkNormBackward& args);
Launches rotary_table(const Tensor& table, std::int64_t positions,
                      const std::vector<double>& frequencies, double factor);
Launches query_growth_table(const Tensor& table, std::int64_t head_width,
                            const RotaryFrequencies& growth);
Launches rotary(const Rotary& args);
Launches embedding_forward(const EmbeddingForward& args);
Launches embedding_backward(const EmbeddingBackward& args);
Launches cross_entropy(const CrossEntropy& args);
Launches shape_logits(const LogitsForm& form, const Tensor& logits);
Launches logit_maxima(const CutCrossEntropy& args);
Launches exponential_sums(const CutCrossEntropy& args);
Launches cut_cross_entropy(const CutCrossEntropy& args);

Launches add_to_columns(const Columns& columns, const ConstTensor& z, float scale, const Tensor& y);
Launches take_columns(const Columns& columns, const ConstTensor& y, float scale, const Tensor& z);
Launches store_columns(const Columns& columns, const ConstTensor& values, const Tensor& y);
Launches clear_columns(const Columns& columns, const Tensor& y);
Launches move_columns(const Columns& from, const ConstTensor& x, const Columns& to,
                      const Tensor& y);

Launches linear_forward(const LinearForward& args);
Launches linear_backward_input(const LinearBackwardInput& args);
Launches linear_backward_weight(const LinearBackwardWeight& args);
Launches attention_forward(const AttentionForward& args);
Launches attention_maxima(const AttentionForward& args);
Launches attention_backward(const AttentionBackward& args);
Launches join_attention_sinks(const AttentionJoinSinks& args);
Launches attention_sinks_gradient(const AttentionSinksGradient& args);
Launches join_latent_heads(const LatentHeads& shape, const ConstTensor& query,
                           const ConstTensor& keys_values, const ConstTensor& rotated_key,
                           const Tensor& qkv);
Launches split_latent_heads(const LatentHeads& shape, const ConstTensor& d_qkv,
                            const Tensor& d_query, const Tensor& d_keys_values,
                            const Tensor& d_rotated_key);
Launches cached_attention(const CachedAttention& args);

Launches router_forward(const RouterForward& args);
Launches router_losses(const RouterLosses& args);
Launches router_totals(const RouterTotals& args);
Launches router_correction(const RouterCorrection& args);
Launches router_backward(const RouterBackward& args);
Launches expert_row_counts(const ExpertRowCounts& args);
Launches experts_forward(const ExpertsForward& args);
Launches experts_backward(const ExpertsBackward& args);
Launches expert_order(const ExpertOrder& args);
Launches expert_pack(const ExpertPack& args);
Launches expert_choices_to_rows(const ExpertChoices& args);
Launches expert_rows_to_choices(const ExpertChoices& args);
Launches expert_combine(const ExpertCombine& args);
Launches expert_rows_forward(const ExpertRowsForward& args);
Launches expert_rows_activate(const ExpertRowsActivate& args);
Launches expert_rows_backward(const ExpertRowsBackward& args);
Launches expert_rows_gradients(const ExpertRowsGradients& args);
Launches expert_input_weights(const ExpertInputWeights& args);
Launches experts_input_gradient(const ExpertsInputGradient& args);
Launches gate_logits(const GateLogits& args);
Launches gate_forward(const GateForward& args);
Launches gate_backward(const GateBackward& args);
Launches gate_weight_gradient(const GateWeightGradient& args);

Launches nf4_encode(const ConstTensor& x, const Tensor& codes, const Tensor& scales);
Launches nf4_encode_scales(const ConstTensor& scales, const Tensor& codes, const Tensor& ranges);
Launches nf4_decode(const Nf4Part& part, const Tensor& out);
Launches encode_blocks(BlockFormat format, const ConstTensor& x, const Tensor& bytes);
Launches sum_blocks(BlockFormat format, const CodedParts& parts, const Tensor& out, bool onto_out);
Launches round_to_blocks(BlockFormat format, const ConstTensor& x, const Tensor& out);

Launches orthogonalise(const Orthogonalise& args);

Launches adam_update(const AdamUpdate& args);
Launches sgd_update(const SgdUpdate& args);
Launches lion_update(const LionUpdate& args);
Launches lamb_moments(const LambUpdate& args);
Launches lamb_norms(const LambUpdate& args, const Tensor& sums);
Launches lamb_apply(const LambUpdate& args, std::span<const float> ratios);
Launches lars_norms(const LarsUpdate& args, const Tensor& sums);
Launches lars_apply(const LarsUpdate& args, std::span<const float> ratios);
Launches muon_momentum(const MuonUpdate& args);
Launches muon_apply(const MuonUpdate& args, std::span<const float> ratios);

}  // namespace sherd::kernels::launches
