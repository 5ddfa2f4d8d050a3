#include "engine/model/shape.h"

#include <numeric>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/experts.h"
#include "kernels/latent_heads.h"
#include "kernels/norm.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary_frequencies.h"
#include "kernels/router.h"
#include "kernels/token.h"

namespace sherd::model {
namespace {

kernels::QkRows rows_of(QkNorm norm) {
  switch (norm) {
    case QkNorm::kPerHead:
      return kernels::QkRows::kPerHead;
    case QkNorm::kProjection:
      return kernels::QkRows::kProjections;
    case QkNorm::kNone:
    case QkNorm::kHead:
    case QkNorm::kHeadAfterRotary:
    case QkNorm::kRotated:
      break;
  }
  return kernels::QkRows::kHeads;
}

}  // namespace

void set_latent_attention(ModelShape& shape, const LatentShape& latent) {
  if (!latent.active()) return;
  shape.latent = latent;
  if (shape.layer_kinds.empty()) shape.layer_kinds.push_back(shape.layer(0));
  for (LayerKind& kind : shape.layer_kinds) kind.attention = AttentionKind::kLatent;
  for (kernels::RotaryFrequencies& table : shape.rotary) {
    table.fraction = kernels::fraction_of(latent.rotated, latent.head_width());
  }
}

kernels::AttentionShape ModelShape::attention(std::int64_t block) const {
  const bool deals = context.deals_heads(), gathers = context.gathers_keys();
  const int shares = deals ? context.degree : 1, share = deals ? context.rank : 0;
  const std::int64_t own_heads = query_heads / shares;
  const bool some_heads = part.is_cut() || deals;
  const kernels::TokenGroups groups = token_groups();
  const int group_degree = gathers ? 1 : context.degree;  // ulysses: of all positions
  const PositionRun run = position_run(0);
  kernels::AttentionBlock keys;
  if (context.passes_keys()) {  // engine/model/attention/ring.h: of the first half, its own
    keys = {.first_key = run.first, .keys = run.count, .rows = seq_length};
  }
  kernels::AttentionShape shape{.sequences = sequences,
                                .positions = whole_seq_length(),
                                .query_heads = own_heads,
                                .kv_heads = kv_heads / shares,
                                .head_width = head_width(),
                                .scale = static_cast<float>(attention_scale),
                                .window = layer(block).window,
                                .softcap = static_cast<float>(attention_softcap),
                                .first_query_head = part.first_query_head + share * own_heads,
                                .all_query_heads = some_heads ? all_query_heads() : 0,
                                .kv_sum_groups = part.kv_sum_groups,
                                .first_query = gathers || keys ? run.first : 0,
                                .queries = gathers || keys ? run.count : 0,
                                .query_groups = groups.groups * group_degree,
                                .of_a_query_group = groups.of_a_group,
                                .block = keys,
                                .shares_keys = shares_kv_heads()};
  if (is_absorbed(block)) {  // all heads share one key; scores keep the scale of whole heads
    shape.scale = shape.score_scale();
    shape.kv_heads = 1;
    shape.head_width = latent.down_width();
  } else if (layer(block).attention == AttentionKind::kLatent) {
    shape.value_width = latent.value;
  }
  return shape;
}

ModelShape::Place ModelShape::place_of(std::int64_t position) const {
  if (!context.is_cut()) return {0, position};
  const std::int64_t count = position_run(0).count;
  const auto part = static_cast<int>(position / count);
  if (!context.passes_keys()) return {part, position % count};
  return part < context.degree ? Place{part, position % count}
                               : Place{2 * context.degree - 1 - part, count + position % count};
}

std::int64_t ModelShape::residual_tokens() const {
  return sequence_parallel() ? (tokens() + part.degree - 1) / part.degree : tokens();
}

std::int64_t ModelShape::first_residual_token() const {
  return sequence_parallel() ? part.rank * residual_tokens() : 0;
}

PositionRun ModelShape::position_run(int which) const {
  const std::int64_t count = seq_length / position_runs();
  const int part = context.passes_keys() ? context.half(context.rank, which) : context.rank;
  return {part * count, count};
}

std::int64_t ModelShape::position_gap() const {
  const PositionRun first = position_run(0), last = position_run(position_runs() - 1);
  return position_runs() == 1 ? 0 : last.first - first.first - first.count;
}

// A layer of multi-token prediction is of the last layer's kind.
LayerKind ModelShape::layer(std::int64_t block) const {
  if (mtp_layers > 0) block = std::min(block, num_layers - 1);
  if (!layer_kinds.empty()) {
    return layer_kinds[static_cast<std::size_t>(block) % layer_kinds.size()];
  }
  return {.rotary = positions == Positions::kRope ? 0 : -1};
}

bool ModelShape::is_absorbed(std::int64_t block) const {
  return latent.absorbed && layer(block).attention == AttentionKind::kLatent;
}

std::int64_t ModelShape::ffn_width_of(std::int64_t block) const {
  const LayerKind kind = layer(block);
  if (kind.mlp == MlpKind::kNone) return 0;
  if (kind.mlp == MlpKind::kExperts) return moe.shared_width;
  return kind.ffn_width > 0 ? kind.ffn_width : ffn_width;
}

bool ModelShape::normalises_heads(std::int64_t block) const {
  if (qk_norm != QkNorm::kRotated) return qk_norm != QkNorm::kNone;
  const int table = layer(block).rotary;
  return table >= 0 && rotary[static_cast<std::size_t>(table)].rotates();
}

kernels::TokenGroups ModelShape::token_groups() const {
  if (!part.has_canonical_sums()) return {};
  return {.groups = kSumGroups / context.degree,
          .of_a_group = (whole_seq_length() + kSumGroups - 1) / kSumGroups,
          .sequences = sequences,
          .positions = seq_length};
}

kernels::TokenGroups ModelShape::residual_token_groups() const {
  kernels::TokenGroups groups = token_groups();
  if (!groups || !sequence_parallel()) return groups;
  groups.groups /= part.degree;
  groups.positions = residual_tokens();
  return groups;
}

std::int64_t ModelShape::all_query_heads() const {
  return part.is_cut() ? part.all_query_heads : query_heads;
}

std::int64_t ModelShape::all_kv_heads() const {
  return part.is_cut() ? part.all_kv_heads : kv_heads;
}

kernels::AttentionShape ModelShape::cached_attention(std::int64_t block) const {
  kernels::AttentionShape shape = attention(block);
  shape.positions = cached_positions;
  shape.query_groups = 0;  // of gradients
  return shape;
}

kernels::NormShape ModelShape::norm_shape() const {
  return {norm,
          residual_tokens(),
          width,
          static_cast<float>(norm_eps),
          static_cast<float>(norm_offset),
          residual_token_groups()};
}

kernels::NormShape ModelShape::latent_norm_shape(std::int64_t rank) const {
  return {kernels::NormKind::kRmsNorm, tokens(), rank, LatentShape::kEps,
          static_cast<float>(norm_offset)};
}

kernels::LatentHeads ModelShape::latent_heads() const {
  return {.tokens = tokens(),
          .heads = query_heads,
          .plain = latent.plain,
          .rotated = latent.rotated,
          .value = latent.value,
          .first = latent.kv_rank,
          .columns = latent.down_width()};
}

kernels::QkNormShape ModelShape::qk_norm_shape() const {
  return {.kind = norm,
          .rows = rows_of(qk_norm),
          .tokens = tokens(),
          .query_heads = query_heads,
          .kv_heads = kv_heads,
          .head_width = head_width(),
          .eps = static_cast<float>(norm_eps),
          .weight_offset = static_cast<float>(norm_offset),
          .weightless = qk_norm == QkNorm::kRotated,
          .all_query_heads = cuts_normalised_rows() ? all_query_heads() : 0,
          .all_kv_heads = cuts_normalised_rows() ? all_kv_heads() : 0,
          .groups = std::max(1, part.sum_groups),
          .token_groups = token_groups()};
}

kernels::ActivationShape ModelShape::activation_shape(std::int64_t block) const {
  return {activation, tokens(), ffn_width_of(block)};
}

std::vector<std::int64_t> ModelShape::layers_of_each_kind() const {
  const auto period = static_cast<std::int64_t>(std::max<std::size_t>(1, layer_kinds.size()));
  std::vector<std::int64_t> layers(static_cast<std::size_t>(std::min(num_layers, period)));
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

std::int64_t ModelShape::num_further_losses() const {
  return mtp_layers > 0 ? mtp_layers : z_loss > 0.0 || teacher ? 1 : 0;
}

std::int64_t ModelShape::largest_ffn_width() const {
  std::int64_t largest = 0;
  for (const std::int64_t layer : layers_of_each_kind()) {
    largest = std::max(largest, ffn_width_of(layer));
  }
  return largest;
}

std::int64_t ModelShape::num_mlps(std::int64_t first, std::int64_t count) const {
  std::int64_t mlps = 0;
  for (std::int64_t layer = first; layer < first + count; ++layer) mlps += has_mlp(layer) ? 1 : 0;
  return mlps;
}

std::int64_t ModelShape::num_mixtures(std::int64_t first, std::int64_t count) const {
  std::int64_t mixtures = 0;
  for (std::int64_t layer = first; layer < first + count; ++layer) {
    mixtures += has_experts(layer) ? 1 : 0;
  }
  return mixtures;
}

kernels::RouterShape ModelShape::router() const {
  return {.sequences = sequences,
          .positions = seq_length,
          .experts = moe.experts,
          .per_token = moe.per_token,
          .score = moe.score,
          .normalise = moe.normalise,
          .scale = static_cast<float>(moe.scale),
          .least_sum = static_cast<float>(moe.least_sum),
          .added_sum = static_cast<float>(moe.added_sum),
          .jitter = static_cast<float>(moe.jitter),
          .groups = moe.groups,
          .kept_groups = moe.kept_groups,
          .group_scores = moe.group_scores,
          .scope = moe.scope,
          .balance = static_cast<float>(moe.balance),
          .z = static_cast<float>(moe.z)};
}

kernels::ExpertsShape ModelShape::experts() const {
  kernels::ExpertsShape shape{.tokens = tokens(),
                              .width = width,
                              .experts = moe.experts,
                              .ffn_width = moe.ffn_width,
                              .per_token = moe.per_token,
                              .activation = activation,
                              .weighs_input = moe.weighs_input,
                              .buffer_rows = moe.buffer_rows,
                              .grouped = moe.grouped};
  if (moe.buffer_rows == 0) shape.buffer_rows = tokens();
  shape.buffer_rows = kernels::experts_buffer_rows(shape);
  return shape;
}

kernels::ExpertsShape ModelShape::owned_experts() const {
  kernels::ExpertsShape shape = experts();
  if (!expert.is_cut()) return shape;
  const std::int64_t T = expert.degree * tokens();
  const auto choices = static_cast<int>(std::min<std::int64_t>(moe.per_token, held_experts()));
  shape.tokens = T;
  shape.experts = held_experts();
  shape.per_token = choices;
  shape.buffer_rows = moe.buffer_rows > 0 ? moe.buffer_rows : tokens() * moe.per_token;
  shape.buffer_rows = kernels::experts_buffer_rows(shape);
  return shape;
}

kernels::LogitsForm ModelShape::logits_form() const {
  return {static_cast<float>(logits_scale), static_cast<float>(logits_softcap)};
}
kernels::VocabularyRows ModelShape::vocabulary_rows() const {
  return {part.first_token, part.all_tokens};
}

}  // namespace sherd::model
