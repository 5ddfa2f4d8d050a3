#include "tests/support/models/model_forms.h"

#include <stdexcept>

#include "engine/model/sites.h"
#include "tests/support/models/weighed_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using kernels::ActivationKind;
using kernels::RotaryScaling;

// Norms around both branches, norms of heads, windows and two tables, multipliers and caps.
model::ModelShape sandwich() {
  model::ModelShape shape = tiny_model(false);
  shape.tied = true;
  shape.head_size = 10;
  shape.norm_placement = model::NormPlacement::kSandwich;
  shape.norm_offset = 1.0;
  shape.qk_norm = model::QkNorm::kHead;
  shape.activation = ActivationKind::kGeGlu;
  shape.embedding_scale = 4.9;
  shape.attention_scale = 0.4;
  shape.attention_softcap = 2.0;
  shape.logits_softcap = 5.0;
  shape.rotary = {{.theta = 1e6, .scaling = RotaryScaling::kLinear, .factor = 8.0}, {}};
  shape.layer_kinds = {{.window = 4, .rotary = 1}, {.rotary = 0}};
  return shape;
}

// Norms after the branches, norms of whole projections, a layer without rotation.
model::ModelShape post() {
  model::ModelShape shape = tiny_model(false);
  shape.norm_placement = model::NormPlacement::kPost;
  shape.qk_norm = model::QkNorm::kProjection;
  shape.residual_scale = 0.6;
  shape.layer_kinds = {{.rotary = 0}, {.rotary = -1}};
  return shape;
}

// Parallel branches, biases everywhere, rotation of a part of each head.
model::ModelShape parallel() {
  model::ModelShape shape = tiny_model(true);
  shape.tied = false;
  shape.positions = model::Positions::kRope;
  shape.rotary = {{.fraction = 0.5}};
  shape.head_size = 8;
  shape.block_form = model::BlockForm::kParallel;
  shape.activation = ActivationKind::kGeluErf;
  return shape;
}

model::ModelShape parallel_one_norm() {
  model::ModelShape shape = parallel();
  shape.block_form = model::BlockForm::kParallelOneNorm;
  shape.activation = ActivationKind::kRelu2;
  shape.biases = {.norm = false, .qkv = true, .output = false, .mlp = false};
  shape.logits_scale = 0.5;
  return shape;
}

// As above, with biases of norms only and layer norms of queries and keys with weights for each head.
model::ModelShape norms_per_head() {
  model::ModelShape shape = parallel();
  shape.block_form = model::BlockForm::kParallelOneNorm;
  shape.qk_norm = model::QkNorm::kPerHead;
  shape.activation = ActivationKind::kSwiGlu;
  shape.biases = {.norm = true, .qkv = false, .output = false, .mlp = false};
  return shape;
}

// Norms of heads, heads wider than width / heads, a long text's table.
model::ModelShape wide_heads() {
  model::ModelShape shape = tiny_model(false);
  shape.tied = true;
  shape.head_size = 14;
  shape.qk_norm = model::QkNorm::kHead;
  shape.rotary = {{.scaling = RotaryScaling::kYarn, .factor = 4.0, .original_length = 5}};
  return shape;
}

// Layers of three kinds: two feed-forward widths, and one that is its attention alone.
model::ModelShape layers_that_differ() {
  model::ModelShape shape = tiny_model(false);
  shape.num_layers = 4;
  shape.layer_kinds = {{.rotary = 0, .ffn_width = 21},
                       {.window = 4, .rotary = 0, .mlp = model::MlpKind::kNone},
                       {.rotary = 0}};
  return shape;
}

// The same with norms around the branches.
model::ModelShape sandwich_layers_that_differ() {
  model::ModelShape shape = sandwich();
  shape.layer_kinds = {{.window = 4, .rotary = 1, .ffn_width = 45},
                       {.rotary = 0, .mlp = model::MlpKind::kNone}};
  shape.qk_norm = model::QkNorm::kHeadAfterRotary;
  return shape;
}

// Each layer's MLP is a unit of its own, and one layer has none.
model::ModelShape mlps_apart() {
  model::ModelShape shape = tiny_model(true);
  shape.layer_kinds = {{}, {.mlp = model::MlpKind::kNone}, {.ffn_width = 22}};
  shape.layer_parts = {{"mlp", {model::SiteId::kUp, model::SiteId::kDown}}};
  return shape;
}

// Experts in every second layer, two of five for each token.
model::ModelShape experts() {
  model::ModelShape shape = tiny_model(false);
  shape.layer_kinds = {{.rotary = 0, .mlp = model::MlpKind::kExperts}, {.rotary = 0}};
  shape.layer_parts = model::expert_parts();
  shape.moe = {
      .experts = 5, .per_token = 2, .ffn_width = 13, .normalise = true, .balance = 0.3, .z = 0.01};
  return shape;
}

// In every layer, with norms around; groups, sigmoids, and a shared expert with a gate.
model::ModelShape sandwich_experts() {
  model::ModelShape shape = sandwich();
  for (model::LayerKind& kind : shape.layer_kinds) kind.mlp = model::MlpKind::kExperts;
  shape.layer_parts = model::expert_parts();
  shape.moe = {.experts = 6,
               .per_token = 2,
               .ffn_width = 11,
               .shared_width = 17,
               .shared_gate = true,
               .score = kernels::RouterScore::kSigmoid,
               .normalise = true,
               .scale = 1.5,
               .groups = 3,
               .kept_groups = 2,
               .group_scores = 2,
               .scope = kernels::BalanceScope::kMicroBatch,
               .balance = 0.2,
               .z = 0.02};
  return shape;
}

// Branches side by side, a shared expert without a gate, GELU without one.
model::ModelShape parallel_experts() {
  model::ModelShape shape = parallel();
  shape.biases.mlp = false;
  shape.layer_kinds = {{.rotary = 0}, {.rotary = 0, .mlp = model::MlpKind::kExperts}};
  shape.layer_parts = model::expert_parts();
  shape.moe = {.experts = 4,
               .per_token = 3,
               .ffn_width = 9,
               .shared_width = 12,
               .score = kernels::RouterScore::kSoftmaxOfChosen,
               .balance = 0.1};
  return shape;
}

// Queries, keys and values from latents; values narrower than keys; a window in every second layer.
model::ModelShape latents() {
  model::ModelShape shape = tiny_model(false);
  shape.kv_heads = shape.query_heads;
  shape.rotary = {{.scaling = RotaryScaling::kYarn, .factor = 4.0, .original_length = 5}};
  shape.layer_kinds = {{.window = 4, .rotary = 0}, {.rotary = 0}};
  model::set_latent_attention(
      shape, {.kv_rank = 11, .query_rank = 9, .plain = 6, .rotated = 4, .value = 7});
  return shape;
}

// The same without a latent of queries, with values as wide as keys, and experts.
model::ModelShape latents_and_experts() {
  model::ModelShape shape = experts();
  shape.kv_heads = shape.query_heads;
  shape.moe.shared_width = 14;
  model::set_latent_attention(shape, {.kv_rank = 8, .plain = 4, .rotated = 6, .value = 10});
  return shape;
}

// Attention with sinks, windows in every second layer, and experts with biases.
model::ModelShape sinks_and_biases() {
  model::ModelShape shape = experts();
  shape.sinks = true;
  shape.activation = ActivationKind::kClampedSwiGlu;
  shape.biases = {.norm = false, .qkv = true, .output = true, .mlp = false};
  shape.layer_kinds = {{.window = 4, .rotary = 0, .mlp = model::MlpKind::kExperts},
                       {.rotary = 0, .mlp = model::MlpKind::kExperts}};
  shape.moe.score = kernels::RouterScore::kSoftmaxOfChosen;
  shape.moe.normalise = false;
  shape.moe.biases = true;
  return shape;
}

// As Llama 4: weights on what experts read, norms of rotated heads without weights, and queries that
// grow in the layers that don't rotate.
model::ModelShape weighed_inputs() {
  model::ModelShape shape = experts();
  shape.qk_norm = model::QkNorm::kRotated;
  shape.rotary = {{}, {.query_growth = 0.3, .query_step = 3}};
  shape.layer_kinds = {{.rotary = 0, .mlp = model::MlpKind::kExperts},
                       {.rotary = 1, .mlp = model::MlpKind::kExperts},
                       {.rotary = 0}};
  shape.moe = {.experts = 5,
               .per_token = 2,
               .ffn_width = 13,
               .shared_width = 17,
               .score = kernels::RouterScore::kSigmoid,
               .weighs_input = true,
               .balance = 0.2,
               .z = 0.01};
  return shape;
}

}  // namespace

std::vector<ModelForm> weighed_forms() {
  return {{"weighed_inputs", weighed_inputs()}};
}

std::vector<ModelForm> expert_forms_on_cpus() {
  std::vector<ModelForm> forms = expert_forms();
  for (ModelForm& form : weighed_forms()) forms.push_back(std::move(form));
  return forms;
}

std::vector<ModelForm> sink_forms() {
  return {{"sinks_and_biases", sinks_and_biases()}};
}

std::vector<ModelForm> latent_forms() {
  return {{"latents", latents()}, {"latents_and_experts", latents_and_experts()}};
}

std::vector<ModelForm> all_expert_forms() {
  std::vector<ModelForm> forms = expert_forms_on_cpus();
  forms.push_back({"sinks_and_biases", sinks_and_biases()});
  forms.push_back({"latents_and_experts", latents_and_experts()});
  return forms;
}

std::vector<ModelForm> expert_forms() {
  return {{"experts", experts()},
          {"sandwich_experts", sandwich_experts()},
          {"parallel_experts", parallel_experts()}};
}

std::vector<ModelForm> forms_on_cpus() {
  std::vector<ModelForm> forms = model_forms();
  for (ModelForm& form : expert_forms_on_cpus()) forms.push_back(std::move(form));
  for (ModelForm& form : latent_forms()) forms.push_back(std::move(form));
  for (ModelForm& form : sink_forms()) forms.push_back(std::move(form));
  return forms;
}

std::vector<ModelForm> model_forms() {
  return {{"sandwich", sandwich()},
          {"post", post()},
          {"parallel", parallel()},
          {"parallel_one_norm", parallel_one_norm()},
          {"norms_per_head", norms_per_head()},
          {"wide_heads", wide_heads()},
          {"layers_that_differ", layers_that_differ()},
          {"sandwich_layers_that_differ", sandwich_layers_that_differ()},
          {"mlps_apart", mlps_apart()}};
}

model::ModelShape cuttable(model::ModelShape shape, std::int64_t kv_heads) {
  if (shape.head_size == 0) shape.head_size = 6;
  shape.width = 23;
  shape.query_heads = 8;
  shape.kv_heads = kv_heads;
  shape.ffn_width = 40;
  for (model::LayerKind& kind : shape.layer_kinds) kind.ffn_width = kind.ffn_width > 0 ? 24 : 0;
  if (shape.moe.active()) shape.moe.ffn_width = 16;
  if (shape.moe.shared_width > 0) shape.moe.shared_width = 24;
  shape.vocab_size = 43;
  shape.num_layers = 2;
  return shape;
}

std::vector<ModelForm> cuttable_forms() {
  std::vector<ModelForm> forms{{"gpt2", cuttable(tiny_model(true), 8)},
                               {"llama", cuttable(tiny_model(false), 4)},
                               {"fewer_kv_heads_than_ranks", cuttable(tiny_model(false), 2)},
                               {"one_kv_head", cuttable(tiny_model(false), 1)}};
  for (const ModelForm& form : model_forms()) {
    forms.push_back({form.name, cuttable(form.shape, 2)});
  }
  model::ModelShape centred = cuttable(tiny_model(true), 2);
  centred.qk_norm = model::QkNorm::kProjection;
  forms.push_back({"layernorms_of_projections", centred});
  centred.qk_norm = model::QkNorm::kHead;
  centred.norm_placement = model::NormPlacement::kSandwich;
  forms.push_back({"layernorms_of_heads", centred});
  return forms;
}

std::vector<ModelForm> cuttable_expert_forms() {
  std::vector<ModelForm> forms;
  for (const ModelForm& form : expert_forms_on_cpus()) {
    forms.push_back({form.name, cuttable(form.shape, 2)});
  }
  return forms;
}

std::vector<ModelForm> all_cuttable_forms() {
  std::vector<ModelForm> forms = cuttable_forms();
  for (ModelForm& form : cuttable_expert_forms()) forms.push_back(std::move(form));
  return forms;
}

std::vector<ModelForm> cuttable_expert_forms_with_biases() {
  std::vector<ModelForm> forms = cuttable_expert_forms();
  forms.push_back({"sinks_and_biases", cuttable(sinks_and_biases(), 2)});
  return forms;
}

std::vector<ModelForm> context_rank_forms() {
  std::vector<ModelForm> forms = all_cuttable_forms();
  forms.push_back({"sinks_and_biases", cuttable(sinks_and_biases(), 2)});
  for (const ModelForm& form : latent_forms()) {
    forms.push_back({form.name, cuttable(form.shape, 8)});
  }
  return forms;
}

std::vector<ModelForm> tensor_rank_forms() {
  std::vector<ModelForm> forms = cuttable_forms();
  for (const ModelForm& form : cuttable_expert_forms_with_biases()) forms.push_back(form);
  for (const ModelForm& form : latent_forms())
    forms.push_back({form.name, cuttable(form.shape, 8)});
  model::ModelShape sinks = cuttable(tiny_model(false), 4);
  sinks.sinks = true;
  sinks.layer_kinds = {{.window = 4, .rotary = 0}, {.rotary = 0}};
  forms.push_back({"sinks", sinks});
  return forms;
}

model::ModelShape shape_named(const std::vector<ModelForm>& forms, const std::string& name) {
  for (const ModelForm& form : forms) {
    if (form.name == name) return form.shape;
  }
  throw std::out_of_range(name);
}

model::ModelShape cuttable_form(const std::string& name) {
  return shape_named(cuttable_forms(), name);
}

}  // namespace sherd::testing
