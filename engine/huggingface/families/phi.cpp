// Phi-3 and its successors: Llama's form with query, key and value in one matrix, gate and up too.
#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kNames[] = {
    {"embedding.token", "embed_tokens"},
    {"block.{}.norm1", "layers.{}.input_layernorm"},
    {"block.{}.attention.qkv", "layers.{}.self_attn.qkv_proj", Part::kQkv},
    {"block.{}.attention.output", "layers.{}.self_attn.o_proj"},
    {"block.{}.norm2", "layers.{}.post_attention_layernorm"},
    {"block.{}.mlp.up", "layers.{}.mlp.gate_up_proj"},
    {"block.{}.mlp.down", "layers.{}.mlp.down_proj"},
    {"final_norm", "norm"},
    {"head", "lm_head", Part::kWhole, false, true},
};
constexpr std::span<const Module> kModules[] = {kNames};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr Demand kDemands[] = {{"attention_bias", "false"}};

void phi3(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary({.fraction = 1.0, .length = 4096.0, .longrope_alone = true});
  config.use("original_max_position_embeddings");
  config.window();
}

void write_phi3(FamilyWriter& config) {
  const std::string scaling = config.text("model.rope_scaling");
  if (scaling != "none" && scaling != "longrope") return;  // the class has no other
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
  config.window();
}

constexpr Family kFamilies[] = {family_of_form(usual_form(kModules, kRmsNorm, kKeys, kDemands),
                                               "phi3", "Phi3ForCausalLM", phi3, write_phi3)};

}  // namespace

std::span<const Family> phi_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
