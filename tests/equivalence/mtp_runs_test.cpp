// Runs with multi-token prediction: PyTorch's numbers from a folder of DeepSeek-V3's form, the same
// bits after a resume on another mesh, and an export with every tensor as it was.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "core/error.h"
#include "engine/inference/evaluate.h"
#include "engine/inference/export.h"
#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/support/models/tiny_llama.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Settings = std::map<std::string, std::string>;

// Type, shape and bytes of each tensor of a folder with one file.
std::map<std::string, std::vector<std::string>> tensors_of(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const json header = json::parse(file.substr(sizeof length, length));
  std::map<std::string, std::vector<std::string>> tensors;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    tensors[name] = {tensor["dtype"].dump(), tensor["shape"].dump(),
                     file.substr(sizeof length + length + begin, end - begin)};
  }
  return tensors;
}

json reference() {
  std::ifstream file(fs::path(SHERD_SOURCE_DIR) / "tests/reference/mtp.json");
  return json::parse(file);
}

class MtpRuns : public ::testing::Test {
 protected:
  MtpRuns() {
    for (const json& run : stored_["runs"]) {
      const std::int64_t layers = run["layers"];
      test::write_made_model(folder_, folder_of(layers),
                             config_of("deepseek_v3", "DeepseekV3ForCausalLM", layers),
                             shapes_of(run));
    }
    std::string lines;
    for (const json& text : stored_["texts"]) lines += json{{"text", text}}.dump() + "\n";
    folder_.write("texts.jsonl", lines);
  }

  static test::NamedShapes shapes_of(const json& run) {
    test::NamedShapes shapes;
    for (const std::string text : run["tensors"]) {
      std::istringstream words(text);
      std::string name;
      words >> name;
      for (std::int64_t size = 0; words >> size;) shapes[name].push_back(size);
    }
    return shapes;
  }
  json config_of(const std::string& type, const std::string& architecture,
                 std::int64_t layers) const {
    json config = stored_["config"];
    config["architectures"] = {architecture};
    config["model_type"] = type;
    config["hidden_act"] = "silu";
    config["rope_theta"] = 10000.0;
    config["num_nextn_predict_layers"] = layers;
    return config;
  }
  // After a step that changes nothing.
  void expect_every_byte_as_it_was(const std::string& folder,
                                   const std::string& type = "deepseek_v3",
                                   Settings changes = {}) const {
    changes.insert({{"model.from", folder_.file(folder)},
                    {"checkpoint.init_from", folder_.file(folder)},
                    {"optimizer.lr", "0"},
                    {"training.max_steps", "1"},
                    {"checkpoint.interval", "1"}});
    run("kept", settings("kept", 1, changes));
    engine::ExportRequest request;
    request.checkpoint = folder_.file("kept/checkpoints/" + checkpoint::step_directory_name(1));
    request.to = folder_.file("exported");
    engine::export_checkpoint(request);
    const json config = json::parse(folder_.read("exported/config.json"));
    EXPECT_EQ(config.value("num_nextn_predict_layers", 0),
              changes.contains("mtp.num_layers") ? 0 : 1);
    EXPECT_EQ(config["model_type"], type);
    EXPECT_EQ(tensors_of(folder_.read("exported/model.safetensors")),
              tensors_of(folder_.read(folder + "/model.safetensors")));
  }

  static std::string folder_of(std::int64_t layers) { return fmt::format("model{}", layers); }
  Settings settings(const std::string& output, std::int64_t layers,
                    const Settings& changes = {}) const {
    const std::string count = std::to_string(stored_["texts"].size());
    Settings settings = {{"run.name", "mtp"},
                         {"run.output_dir", folder_.file(output)},
                         {"run.device", "cpu"},
                         {"run.num_threads", "1"},
                         {"model.from", folder_.file(folder_of(layers))},
                         {"checkpoint.init_from", folder_.file(folder_of(layers))},
                         {"data.path", folder_.file("texts.jsonl")},
                         {"data.format", "bytes"},
                         {"data.documents", "separate"},
                         {"data.packing", "none"},
                         {"data.validation_fraction", "0"},
                         {"training.seq_length", "24"},
                         {"training.global_batch_size", count},
                         {"training.max_steps", "5"},
                         {"training.sample_tokens", "0"},
                         {"moe.bias_update_rate", "0"},
                         {"moe.balance_loss", "0"},
                         {"mtp.num_layers", std::to_string(layers)},
                         {"optimizer.type", "sgd"},
                         {"optimizer.momentum", "0"},
                         {"optimizer.weight_decay", "0"},
                         {"optimizer.lr", "0.1"},
                         {"gradient_clipping.max_norm", "0"},
                         {"lr_scheduler.type", "constant"},
                         {"lr_scheduler.warmup_steps", "0"},
                         {"checkpoint.interval", "0"},
                         {"metrics.tensorboard", "false"}};
    for (const auto& [key, value] : changes) settings[key] = value;
    return settings;
  }
  std::vector<json> run(const std::string& output, const Settings& settings) const {
    engine::RecipeRequest request;
    request.path = "mtp.yaml";
    request.text = "run: {name: mtp}\n";
    for (const auto& [key, value] : settings) request.sets.push_back(key + "=" + value);
    const engine::ResolvedRecipe recipe = engine::resolve_recipe(request);
    engine::train(recipe, engine::choose_machine(recipe.values));
    return metrics_of(folder_, output);
  }

  const json stored_ = reference();
  const test::TempFolder folder_;
};

TEST_F(MtpRuns, TrainAsPyTorchDoes) {
  int number = 0;
  for (const json& expected : stored_["runs"]) {
    const std::string output = fmt::format("torch{}", number++);
    const std::vector<json> steps =
        run(output, settings(output, expected["layers"],
                             {{"optimizer.lr", expected["rate"].dump()},
                              {"mtp.loss_scaling_factor", expected["factor"].dump()}}));
    ASSERT_EQ(steps.size(), expected["steps"].size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const auto& [key, value] : expected["steps"][i].items()) {
        ASSERT_TRUE(steps[i].contains(key)) << key;
        const double theirs = value, ours = steps[i][key];
        EXPECT_NEAR(ours, theirs, 2e-5 * std::max(1.0, std::abs(theirs)))
            << output << ", step " << i + 1 << ", " << key;
      }
    }
  }
}

TEST_F(MtpRuns, ResumeOnAnotherMeshWithTheSameBits) {
  const Settings mesh = {{"optimizer.type", "adamw"},
                         {"training.max_steps", "4"},
                         {"checkpoint.interval", "2"},
                         {"mtp.loss_scaling_factor", "0.5"},
                         {"training.gradient_accumulation_steps", "3"}};
  const std::vector<json> whole = run("whole", settings("whole", 2, mesh));
  Settings first = mesh;
  first["training.max_steps"] = "2";
  run("halves", settings("halves", 2, first));
  Settings second = mesh;
  second["parallelism.data_parallel_shard_degree"] = "3";
  second["zero_optimization.stage"] = "3";
  second["training.gradient_accumulation_steps"] = "1";
  run("halves", settings("halves", 2, second));
  EXPECT_EQ(state_after(folder_, "halves", 4), state_after(folder_, "whole", 4));
  EXPECT_EQ(whole.size(), 4u);
}

// Evaluations use none of the layers, so the loss is that of the folder's model.
TEST_F(MtpRuns, EvaluateAsTheFolderThatTheyBeganFrom) {
  run("kept",
      settings("kept", 2,
               {{"optimizer.lr", "0"}, {"training.max_steps", "1"}, {"checkpoint.interval", "1"}}));
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>('a' + i * i % 23);
  folder_.write("text.txt", text);
  const auto loss_of = [&](const std::string& model, std::vector<std::string> sets) {
    sets.push_back("data.validation_path=" + folder_.file("text.txt"));
    engine::TrainedModelRequest request;
    request.checkpoint = model;
    request.sets = std::move(sets);
    return engine::evaluate_checkpoint(request).loss;
  };
  const double of_run =
      loss_of(folder_.file("kept/checkpoints/" + checkpoint::step_directory_name(1)),
              {"data.documents=joined", "data.packing=best_fit"});
  const double of_folder =
      loss_of(folder_.file(folder_of(2)), {"data.format=bytes", "training.seq_length=24"});
  EXPECT_EQ(of_run, of_folder);
}

TEST_F(MtpRuns, ExportTheLayersWithEveryByteAsItWas) {
  expect_every_byte_as_it_was(folder_of(1));
}

// Kimi K2 has the form of DeepSeek-V3, and is written as such.
TEST_F(MtpRuns, ExportThoseOfKimiK2) {
  const test::NamedShapes shapes = shapes_of(stored_["runs"][0]);
  test::write_made_model(folder_, "kimi", config_of("kimi_k2", "DeepseekV3ForCausalLM", 1), shapes);
  expect_every_byte_as_it_was("kimi");
}

// Heads of queries, keys and values in place of latents.
TEST_F(MtpRuns, ExportThoseOfGlm) {
  test::NamedShapes shapes;
  for (const auto& [name, shape] : shapes_of(stored_["runs"][0])) {
    const std::size_t attention = name.find("self_attn.");
    if (attention == std::string::npos) shapes[name] = shape;
    if (!name.ends_with("o_proj.weight")) continue;
    const std::string prefix = name.substr(0, attention) + "self_attn.";
    shapes[prefix + "o_proj.weight"] = {16, 24};
    shapes[prefix + "q_proj.weight"] = {24, 16};
    shapes[prefix + "q_proj.bias"] = {24};
    for (const char* head : {"k_proj", "v_proj"}) {
      shapes[prefix + head + ".weight"] = {12, 16};
      shapes[prefix + head + ".bias"] = {12};
    }
    for (const char* norm : {"q_norm", "k_norm"}) shapes[prefix + norm + ".weight"] = {12};
  }
  json config = config_of("glm4_moe", "Glm4MoeForCausalLM", 1);
  for (const char* key :
       {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    config.erase(key);
  }
  config.update({{"num_key_value_heads", 1},
                 {"head_dim", 12},
                 {"attention_bias", true},
                 {"use_qk_norm", true},
                 {"partial_rotary_factor", 0.5}});
  test::write_made_model(folder_, "glm", config, shapes);
  expect_every_byte_as_it_was("glm", "glm4_moe");
}

// Tensor ranks read their heads' rows of the folder, and latents whole.
TEST_F(MtpRuns, ExportTheLatentsThatTensorRanksHad) {
  test::NamedShapes shapes;
  for (const auto& [name, shape] : shapes_of(stored_["runs"][0])) {
    if (!name.starts_with("model.layers.2.")) shapes[name] = shape;
  }
  json config = config_of("deepseek_v3", "DeepseekV3ForCausalLM", 0);
  config.erase("num_nextn_predict_layers");
  test::write_made_model(folder_, "latents", config, shapes);
  expect_every_byte_as_it_was("latents", "deepseek_v3",
                              {{"mtp.num_layers", "0"},
                               {"parallelism.tensor_parallel_degree", "2"},
                               {"parallelism.sequence_parallel", "true"}});
}

}  // namespace
}  // namespace sherd::testing
