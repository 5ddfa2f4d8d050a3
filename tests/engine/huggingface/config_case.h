/// A config.json to change, and what is read of it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "engine/huggingface/config.h"
#include "tests/support/values/error_text.h"

namespace sherd::huggingface::config_case {

using test::error_text;

// SmolLM2-135M's, as transformers 4 wrote it.
inline nlohmann::json smollm2() {
  return nlohmann::json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
    "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
    "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
    "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})");
}

inline std::map<std::string, std::string> values_of(const nlohmann::json& config) {
  std::map<std::string, std::string> values;
  for (const ConfigValue& value : parse_config(config.dump(), "config.json").values) {
    values.emplace(value.key, value.value);
  }
  return values;
}

inline std::string refusal(const nlohmann::json& config) {
  return error_text<DataError>([&] { parse_config(config.dump(), "config.json"); });
}

inline nlohmann::json with(nlohmann::json config, const std::string& key, nlohmann::json value) {
  config[key] = std::move(value);
  return config;
}

}  // namespace sherd::huggingface::config_case
