#include "engine/huggingface/families/families.h"

#include <fmt/format.h>

#include <vector>

#include "engine/huggingface/families/common.h"

namespace sherd::huggingface {

std::span<const Family* const> all_families() {
  static const std::vector<const Family*> kFamilies = [] {
    std::vector<const Family*> families;
    for (const auto group :
         {gpt2_families, llama_families, phi_families, gemma_families, olmo_families, neox_families,
          stablelm_families, starcoder_families, cohere_families, glm_families, granite_families,
          relu_families, exaone_families, expert_families, deepseek_families,
          shared_expert_families, gpt_oss_families, llama4_families}) {
      for (const Family& family : group()) families.push_back(&family);
    }
    return families;
  }();
  return kFamilies;
}

const Family* find_family(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

bool has_stacked_experts(const Family& family) {
  for (const std::span<const Module> rows : family.modules) {
    for (const Module& row : rows) {
      if (row.part == Part::kExpertDown && !row.stacked.empty()) return true;
    }
  }
  return false;
}

void kv_heads(ConfigReader& config, std::int64_t missing) {
  std::optional<std::string> of_class;
  if (missing > 0) of_class = std::to_string(missing);
  auto heads = config.value("num_key_value_heads", std::move(of_class));
  if (!heads) heads = config.value("num_attention_heads");
  config.set("model.num_kv_heads", *heads, "num_key_value_heads");
}

void attention_biases(ConfigReader& config) {
  if (!config.truth("attention_bias").value_or(false)) return;
  config.set("model.qkv_bias", "true", "attention_bias");
  config.set("model.output_bias", "true", "attention_bias");
}

void attention_and_mlp_biases(ConfigReader& config) {
  attention_biases(config);
  if (config.truth("mlp_bias").value_or(false)) config.set("model.mlp_bias", "true", "mlp_bias");
}

void turned_layers(ConfigReader& config, const std::string& mask, std::string_view from) {
  if (mask.find('0') == std::string::npos) return;
  const bool some = mask.find('1') != std::string::npos;
  config.set("model.rope_layers", some ? fmt::format("\"{}\"", mask) : "\"0\"", from);
}

std::string all_but_every(std::int64_t nth) {
  return std::string(static_cast<std::size_t>(nth) - 1, '1') + '0';
}

}  // namespace sherd::huggingface
