#include "engine/train/model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "engine/model/adapter.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/model/parameters.h"
#include "engine/recipe/groups.h"
#include "engine/recipe/mup.h"
#include "engine/train/layout/training_options.h"
#include "kernels/attention.h"

namespace sherd::engine {
namespace {

using Model = Recipe::Model;

kernels::ActivationKind activation_of(ActivationChoice choice) {
  using Kind = kernels::ActivationKind;
  switch (choice) {
    case ActivationChoice::kGelu:
      return Kind::kGelu;
    case ActivationChoice::kSwiglu:
      return Kind::kSwiGlu;
    case ActivationChoice::kGeluErf:
      return Kind::kGeluErf;
    case ActivationChoice::kRelu2:
      return Kind::kRelu2;
    case ActivationChoice::kGeglu:
      return Kind::kGeGlu;
    case ActivationChoice::kClampedSwiglu:
      return Kind::kClampedSwiGlu;
  }
  SHERD_CHECK(false, "unknown activation");
  __builtin_unreachable();
}

kernels::RotaryFrequencies rotary_of(const Model& m) {
  return {.theta = m.rope_theta,
          .fraction = m.rope_fraction,
          .scaling = m.rope_scaling,
          .factor = m.rope_factor,
          .original_length = m.rope_original_length,
          .low_freq_factor = m.rope_low_freq_factor,
          .high_freq_factor = m.rope_high_freq_factor,
          .beta_fast = m.rope_beta_fast,
          .beta_slow = m.rope_beta_slow,
          .truncate = m.rope_truncate,
          .attention_factor = m.rope_attention_factor,
          .short_factors = m.rope_short_factors,
          .long_factors = m.rope_long_factors};
}

// Layer `i`: with a window or not, rotated or not, by table 0 or, in windows, the last one.
model::LayerKind layer_kind(const Model& m, std::size_t i, std::size_t num_tables) {
  const bool windowed = m.window > 0 && m.window_layers[i % m.window_layers.size()] == '1';
  const bool rotated =
      m.positions == PositionChoice::kRope && m.rope_layers[i % m.rope_layers.size()] == '1';
  const int table = windowed ? static_cast<int>(num_tables) - 1 : 0;
  return {.window = windowed ? m.window : 0, .rotary = rotated ? table : -1};
}

model::MoeShape experts_of(const MoeKeys& moe) {
  const bool by_sigmoid = moe.score == RouterScore::kSigmoid;
  return {.experts = moe.num_experts,
          .per_token = static_cast<int>(moe.experts_per_token),
          .ffn_width = moe.ffn_hidden_size,
          .shared_width = moe.shared_ffn_hidden_size,
          .shared_gate = moe.shared_gate,
          .score = moe.score,
          .normalise = moe.normalize_weights,
          .scale = moe.weight_scale,
          .least_sum = !by_sigmoid && moe.correction_bias ? 1e-12 : 0.0,  // as ERNIE 4.5
          .added_sum = by_sigmoid ? 1e-20 : 0.0,                          // as DeepSeek-V3
          .groups = static_cast<int>(moe.num_groups),
          .kept_groups = static_cast<int>(moe.kept_groups),
          .group_scores = by_sigmoid ? 2 : 1,
          .weighs_input = moe.weigh_input,
          .jitter = moe.jitter,
          .biases = moe.bias,
          .correction_bias = moe.correction_bias,
          .bias_update_rate = moe.bias_update_rate,
          .scope = moe.balance_scope,
          .balance = moe.balance_loss,
          .z = moe.z_loss,
          .buffer_rows = moe.buffer_rows,
          .grouped = moe.grouped_gemm};
}

// One more table, of layers that don't rotate.
void add_query_growth(const Model& m, model::ModelShape& shape) {
  if (m.query_growth == 0.0) return;
  bool is_used = false;
  for (model::LayerKind& kind : shape.layer_kinds) {
    if (kind.rotary >= 0) continue;
    kind.rotary = static_cast<int>(shape.rotary.size());
    is_used = true;
  }
  if (!is_used) return;
  shape.rotary.push_back({.query_growth = m.query_growth, .query_step = m.query_step});
}

void set_layers(const Model& m, const MoeKeys& moe, model::ModelShape& shape) {
  const kernels::RotaryFrequencies full = rotary_of(m);
  kernels::RotaryFrequencies windowed = full;
  if (m.window_rope_theta > 0.0) windowed.theta = m.window_rope_theta;
  if (!m.window_rope_scaling) windowed.scaling = kernels::RotaryScaling::kNone;
  shape.rotary = {full};
  if (m.window > 0 && windowed != full) shape.rotary.push_back(windowed);
  std::size_t period = std::lcm(m.window_layers.size(), m.rope_layers.size());
  if (moe.num_experts > 0) period = std::lcm(period, moe.layers.size());
  const auto layers = std::min<std::size_t>(period, static_cast<std::size_t>(m.num_layers));
  for (std::size_t i = 0; i < layers; ++i) {
    shape.layer_kinds.push_back(layer_kind(m, i, shape.rotary.size()));
    if (moe.num_experts > 0 && moe.layers[i % moe.layers.size()] == '1') {
      shape.layer_kinds.back().mlp = model::MlpKind::kExperts;
    }
  }
  const auto is_windowed = [](const model::LayerKind& kind) { return kind.rotary == 1; };
  if (shape.rotary.size() > 1 && std::ranges::none_of(shape.layer_kinds, is_windowed)) {
    shape.rotary.pop_back();
  }
  add_query_growth(m, shape);
  model::set_latent_attention(shape, m.latent());
  if (moe.num_experts == 0) return;
  shape.moe = experts_of(moe);
  shape.layer_parts = model::expert_parts();
}

model::AdapterShape adapter_of(const AdapterKeys& adapter) {
  const auto rank = static_cast<double>(adapter.rank);
  return {.rank = adapter.rank,
          .scale = adapter.alpha / (adapter.rslora ? std::sqrt(rank) : rank),
          .dropout = adapter.dropout,
          .targets = adapter.targets,
          .trained_modules = adapter.modules_to_save};
}

std::vector<std::string> frozen_names(const model::ModelShape& shape,
                                      const std::vector<ParameterGroup>& groups) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (is_frozen(groups, parameter.name)) names.push_back(parameter.name);
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

DType dtype_of(FloatType type) {
  switch (type) {
    case FloatType::kF32:
      return DType::kF32;
    case FloatType::kBF16:
      return DType::kBF16;
    case FloatType::kF16:
      return DType::kF16;
  }
  SHERD_CHECK(false, "unknown float type");
  __builtin_unreachable();
}

model::ModelShape model_shape(const Recipe& recipe) {
  const Model& m = recipe.model;
  model::ModelShape shape;
  shape.num_layers = m.num_layers;
  shape.mtp_layers = recipe.mtp.num_layers;
  shape.mtp_loss = recipe.mtp.loss_scaling_factor;
  shape.width = m.hidden_size;
  shape.query_heads = m.num_attention_heads;
  shape.kv_heads = m.num_kv_heads;
  shape.head_size = m.head_width;
  shape.ffn_width = m.ffn_hidden_size;
  shape.vocab_size = m.vocab_size;
  shape.max_positions = m.max_seq_length;
  shape.norm = m.norm == NormChoice::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                : kernels::NormKind::kRmsNorm;
  shape.norm_placement = m.norm_placement;
  shape.block_form = m.block;
  shape.qk_norm = m.qk_norm;
  if (recipe.parallelism.sum_order == SumOrderChoice::kCanonical) {
    model::sum_canonically(shape);
  }
  shape.context.method = recipe.parallelism.context_parallel_method;
  shape.part.sequence_parallel = recipe.parallelism.sequence_parallel;
  shape.positions = m.positions == PositionChoice::kLearned ? model::Positions::kLearned
                                                            : model::Positions::kRope;
  shape.activation = activation_of(m.activation);
  shape.biases = {m.norm_bias, m.qkv_bias, m.output_bias, m.mlp_bias, m.head_bias};
  shape.tied = m.tie_embeddings;
  shape.dropout = m.dropout;
  shape.norm_eps = m.norm_eps;
  shape.norm_offset = m.norm_offset;
  shape.init_std = m.init_std;
  if (const double m_width = mup_width_factor(recipe); m_width != 1.0) {
    shape.block_init_std = m.init_std / std::sqrt(m_width);
  }
  shape.sinks = m.attention_sinks;
  shape.attention_scale = m.attention_scale;
  shape.attention_softcap = m.attention_softcap;
  shape.embedding_scale = m.embedding_scale;
  shape.residual_scale = m.residual_scale;
  shape.logits_scale = m.logits_scale;
  shape.logits_softcap = m.logits_softcap;
  shape.sequences = recipe.training.micro_batch_size;
  shape.seq_length = recipe.training.seq_length;
  shape.dtype = dtype_of(recipe.mixed_precision.param_dtype);
  shape.recompute = recipe.activation_checkpointing.mode;
  set_layers(m, recipe.moe, shape);
  if (recipe.adapter.type == AdapterChoice::kLora) {
    shape.adapter = adapter_of(recipe.adapter);
  } else if (any_frozen(recipe.optimizer.groups)) {
    shape.frozen = frozen_names(shape, recipe.optimizer.groups);
  }
  return shape;
}

double flops_per_token(const model::ModelShape& shape) {
  const auto heads_width = 0.5 * static_cast<double>(shape.heads_width() + shape.attended_width());
  const std::int64_t lowest = model::lowest_trained_block(shape);
  const auto flops_of = [&shape](const std::string& module, std::int64_t rows,
                                 std::int64_t columns) {
    const double flops = model::is_trained(shape, module + ".weight") ? 6.0 : 4.0;
    return flops * static_cast<double>(rows) * static_cast<double>(columns);
  };
  const auto flops_of_block = [&](std::int64_t layer) {
    double block = 0.0;
    for (const model::Site& site : model::block_sites(shape, layer)) {
      if (site.columns == 0) continue;
      const bool is_stack =
          site.id == model::SiteId::kExpertsUp || site.id == model::SiteId::kExpertsDown;
      const double used = is_stack ? static_cast<double>(shape.moe.per_token) /
                                         static_cast<double>(shape.moe.experts)
                                   : 1.0;
      const std::string module = fmt::format("block.{}.{}", layer, site.name);
      const double flops = flops_of(module, site.rows, site.columns);
      block += used * (layer < lowest ? flops / 2.0 : flops);  // 4: of frozen ones
    }
    for (const model::AdapterTarget& target : model::adapter_targets(shape, layer)) {
      const auto used = static_cast<double>(target.experts > 0 ? shape.moe.per_token : 1);
      block += used * static_cast<double>(shape.adapter.rank) *
               static_cast<double>(8 * target.inputs + 6 * target.rows);
    }
    return block;
  };
  const double head =
      flops_of(shape.tied ? "embedding.token" : "head", shape.vocab_size, shape.width);
  const auto positions = static_cast<double>(shape.seq_length);
  double keys = 0.0;  // that a query sees, on average, in all layers together; a third if forward
  double blocks = 0.0;
  for (std::int64_t i = 0; i < shape.num_blocks(); ++i) {
    blocks += flops_of_block(i);
    const kernels::AttentionShape attention = shape.attention(i);
    const auto window = static_cast<double>(attention.window);
    const double seen =
        attention.windowed() ? window - window * window / (2.0 * positions) : positions / 2.0;
    keys += i < lowest ? seen / 3.0 : seen;
  }
  const double heads = head * static_cast<double>(1 + shape.mtp_layers);
  return blocks + heads + 12.0 * keys * heads_width;
}

}  // namespace sherd::engine
