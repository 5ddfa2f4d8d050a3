#include "tests/support/models/tiny_llama.h"

#include <fmt/core.h>

#include <map>
#include <vector>

#include "tests/support/models/small_tokenizer.h"

namespace sherd::test {
namespace {

using nlohmann::json;

// preferences.py: `weight`.
std::vector<float> weight(std::size_t tensor, std::size_t count) {
  std::vector<float> values;
  for (std::uint64_t i = 1; i <= count; ++i) {
    const std::uint64_t bits = (i * 2654435761ULL + (tensor + 1) * 40503 * 65537) % (1ULL << 32);
    values.push_back(static_cast<float>((static_cast<double>(bits) / 4294967296.0 - 0.5) * 0.4));
  }
  return values;
}

}  // namespace

void write_tiny_llama(const TempFolder& folder, const std::string& name, const json& config,
                      std::size_t first_tensor) {
  json written = config;
  written["architectures"] = {"LlamaForCausalLM"};
  written["model_type"] = "llama";
  written["hidden_act"] = "silu";
  written["rope_theta"] = 10000.0;
  const std::int64_t D = config["hidden_size"], F = config["intermediate_size"],
                     V = config["vocab_size"], K = D / 2;
  NamedShapes shapes = {{"lm_head.weight", {V, D}},
                        {"model.embed_tokens.weight", {V, D}},
                        {"model.norm.weight", {D}}};
  for (int layer = 0; layer < config["num_hidden_layers"]; ++layer) {
    const std::string of = fmt::format("model.layers.{}.", layer);
    shapes[of + "input_layernorm.weight"] = shapes[of + "post_attention_layernorm.weight"] = {D};
    shapes[of + "self_attn.q_proj.weight"] = shapes[of + "self_attn.o_proj.weight"] = {D, D};
    shapes[of + "self_attn.k_proj.weight"] = shapes[of + "self_attn.v_proj.weight"] = {K, D};
    shapes[of + "mlp.gate_proj.weight"] = shapes[of + "mlp.up_proj.weight"] = {F, D};
    shapes[of + "mlp.down_proj.weight"] = {D, F};
  }
  write_made_model(folder, name, written, shapes, first_tensor);
}

void write_made_model(const TempFolder& folder, const std::string& name, const json& config,
                      const NamedShapes& shapes, std::size_t first_tensor) {
  folder.write(name + "/config.json", config.dump());
  nlohmann::ordered_json header;
  std::string bytes;
  std::size_t number = first_tensor;
  for (const auto& [tensor, shape] : shapes) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    std::vector<float> values = weight(number++, count);
    if (tensor.find("norm") != std::string::npos) {
      for (float& value : values) value += 1.0f;
    }
    const std::size_t begin = bytes.size();
    bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(float));
    header[tensor] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, bytes.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  folder.write(name + "/model.safetensors",
               std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + bytes);
  folder.write(name + "/tokenizer.json", small_tokenizer().dump());
  folder.write(name + "/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
}

}  // namespace sherd::test
