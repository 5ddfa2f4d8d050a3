/// Tiny models that `transformers` has made, as folders, and runs that begin with them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/interchange/safetensors.h"
#include "engine/inference/evaluate.h"
#include "engine/inference/export.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "engine/saving/initial_weights.h"
#include "engine/train/from_recipe.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::engine {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kTokens = 33;

inline json read_json(const std::string& name) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/huggingface/" + name);
  return json::parse(file);
}

// What tests/reference/huggingface/folders.py made: config, header and loss by transformers. Models
// whose names end in "whole" have parts besides the text model.
inline const json& cases() {
  static const json kCases = read_json("folders.json");
  return kCases;
}

// The same, or one of experts.py.
inline const json& model_case(const std::string& name) {
  static const json kExperts = read_json("experts.json");
  return cases().contains(name) ? cases().at(name) : kExperts.at(name);
}

// Adapters of adapters.py and of expert_adapters.py.
inline const json& adapters() {
  static const json kCases = [] {
    json all = read_json("adapters.json");
    all.update(read_json("expert_adapters.json"));
    return all;
  }();
  return kCases;
}

// The script's formula for weights; see there.
inline float weight_of(const std::string& name, bool is_vector, std::int64_t i) {
  std::int64_t n = 0;
  for (std::size_t p = 0; p < name.size(); ++p) n += name[p] * static_cast<std::int64_t>(p + 1);
  const auto mixed = static_cast<std::uint64_t>(i * 7919 + n * 104729) % (std::uint64_t{1} << 32);
  const auto k = static_cast<std::int64_t>((mixed >> 7) % 255) - 127;
  if (!is_vector || !name.ends_with(".weight")) return static_cast<float>(k) / 512.0f;
  return 1.0f + static_cast<float>((k % 17 + 17) % 17 - 8) / 64.0f;
}

template <class T>
inline void append(std::string& bytes, float value) {
  const T rounded(value);
  bytes.append(reinterpret_cast<const char*>(&rounded), sizeof rounded);
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

inline std::string bytes_of_length(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i, length >>= 8) bytes += static_cast<char>(length & 0xff);
  return bytes;
}

// The file as the library wrote it, in f32; in other types with offsets halved.
inline std::string weights_file(const json& one, DType dtype) {
  std::string header = one["header"];
  const json parsed = json::parse(header);
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [name, entry] : parsed.items()) {
    if (name != "__metadata__") order.emplace_back(entry["data_offsets"][0], name);
  }
  std::sort(order.begin(), order.end());
  std::string data;
  if (dtype != DType::kF32) {
    json::object_t unused;
    header = R"({"__metadata__":{"format":"pt"})";
    for (const auto& [begin, name] : order) {
      const auto& offsets = parsed[name]["data_offsets"];
      header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name,
                            checkpoint::safetensors_type(dtype), parsed[name]["shape"].dump(),
                            offsets[0].get<std::int64_t>() / 2, offsets[1].get<std::int64_t>() / 2);
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
  }
  for (const auto& [begin, name] : order) {
    const auto shape = parsed[name]["shape"].get<std::vector<std::int64_t>>();
    std::int64_t numel = 1;
    for (const std::int64_t dimension : shape) numel *= dimension;
    for (std::int64_t i = 0; i < numel; ++i) {
      const float value = weight_of(name, shape.size() == 1, i);
      if (dtype == DType::kF32) append<float>(data, value);
      if (dtype == DType::kBF16) append<BFloat16>(data, value);
      if (dtype == DType::kF16) append<Float16>(data, value);
    }
  }
  return bytes_of_length(header.size()) + header + data;
}

class Folder : public ::testing::Test {
 protected:
  std::string write_model(const std::string& name, DType dtype = DType::kF32) {
    const json& one = model_case(name);
    const std::string config = replaced(one["config"], "\"float32\"",
                                        dtype == DType::kF32    ? "\"float32\""
                                        : dtype == DType::kBF16 ? "\"bfloat16\""
                                                                : "\"float16\"");
    folder_.write(name + "/config.json", config);
    folder_.write(name + "/model.safetensors", weights_file(one, dtype));
    folder_.write(name + "/tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}");
    return folder_.file(name);
  }

  void write_tokens() {
    std::string bytes;
    for (int t = 0; t < kTokens; ++t) {
      bytes += static_cast<char>((3 * t * t + 7 * t) % 56);
      bytes += '\0';
    }
    folder_.write("tokens.bin", bytes);
    std::string many;
    for (int i = 0; i < 8; ++i) many += bytes;
    folder_.write("many.bin", many);
  }

  // A run of one step that learns nothing, so that its checkpoint holds the folder's weights.
  std::string recipe(const std::string& model, const std::string& more = "") const {
    return "model: {from: " + model + "}\n" + "data: {path: " + folder_.file("many.bin") +
           ", format: bin, validation_fraction: 0}\n" +
           "training: {seq_length: 16, global_batch_size: 12, max_steps: 1}\n" +
           "optimizer: {type: sgd, lr: 0, weight_decay: 0}\n" + "checkpoint: {init_from: " + model +
           ", interval: 1}\n" + more;
  }

  void train(const std::string& text, const std::string& output, int stage, int ranks,
             std::vector<std::string> sets = {}) const {
    RecipeRequest request;
    request.path = "folder.yaml";
    request.text = text;
    request.ranks = ranks;
    request.sets = std::move(sets);
    request.sets.push_back("run.output_dir=" + folder_.file(output));
    request.sets.push_back(fmt::format("zero_optimization.stage={}", stage));
    engine::train(resolve_recipe(request));
  }

  std::string checkpoint(const std::string& output) const {
    return folder_.file(output + "/checkpoints/step-0000000001");
  }

  test::TempFolder folder_{test::memory_folder()};
};

}  // namespace sherd::engine
