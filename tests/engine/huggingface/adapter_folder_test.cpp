// Adapters that PEFT has written, read: their losses are those that tests/reference/huggingface/adapters.py computed
// with PEFT in float64, in the first step and over twenty.

#include "engine/huggingface/adapter_folder.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

std::vector<std::string> names_of_cases() {
  std::vector<std::string> names;
  for (const auto& [name, one] : adapters().items()) names.push_back(name);
  return names;
}

class AdapterIn : public Folder, public ::testing::WithParamInterface<std::string> {
 protected:
  // As PEFT saves it: A and B by the formula of their names, trained modules as the model has them.
  std::string write_adapter(const std::string& name, const json& changes = json::object()) {
    constexpr std::string_view kRoot = "base_model.model.";
    const json& one = adapters().at(name);
    json header;
    std::string data;
    for (const auto& [tensor, entry] : one["tensors"].items()) {
      const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
      std::int64_t numel = 1;
      for (const std::int64_t dimension : shape) numel *= dimension;
      const bool is_adapter = tensor.find(".lora_") != std::string::npos;
      const std::string of_formula = is_adapter ? tensor : tensor.substr(kRoot.size());
      const std::size_t begin = data.size();
      for (std::int64_t i = 0; i < numel; ++i) {
        append<float>(data, weight_of(of_formula, shape.size() == 1, i));
      }
      header[tensor] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    json config = {{"peft_type", "LORA"},
                   {"base_model_name_or_path", write_model(one["model"])},
                   {"r", one["rank"]},
                   {"lora_alpha", one["alpha"]},
                   {"use_rslora", one["rslora"]},
                   {"target_modules", one["targets"]},
                   {"modules_to_save", one["modules_to_save"]}};
    config.update(changes);
    const std::string text = header.dump();
    folder_.write("adapter/adapter_config.json", config.dump());
    folder_.write("adapter/adapter_model.safetensors", bytes_of_length(text.size()) + text + data);
    return folder_.file("adapter");
  }

  double loss_of(const std::string& model) const {
    return evaluate_checkpoint({model,
                                {"data.validation_path=" + folder_.file("tokens.bin"),
                                 "data.format=bin", "training.seq_length=16"},
                                1,
                                {}})
        .loss;
  }

  static std::string error_of(const TrainedModelRequest& request) {
    return test::error_text<DataError>([&] { evaluate_checkpoint(request); });
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, AdapterIn, ::testing::ValuesIn(names_of_cases()),
                         [](const auto& info) { return info.param; });

TEST_P(AdapterIn, HasPeftsLossByItselfAndMerged) {
  write_tokens();
  const std::string adapter = write_adapter(GetParam());
  const double expected = adapters().at(GetParam())["losses"][0];
  EXPECT_NEAR(loss_of(adapter), expected, 5e-6 * expected);
  ExportRequest request{adapter, folder_.file("merged"), DType::kF32};
  request.merge = true;
  export_checkpoint(request);
  EXPECT_EQ(loss_of(folder_.file("merged")), loss_of(adapter));
}

TEST_P(AdapterIn, IsTrainedFurtherWithPeftsLosses) {
  write_tokens();
  const json& one = adapters().at(GetParam());
  const std::string adapter = write_adapter(GetParam());
  // A file of 17 tokens is one window without room to move, so that each step has the same two rows.
  std::string tokens(2 * kTokens, '\0');
  std::ifstream(folder_.file("tokens.bin"), std::ios::binary).read(tokens.data(), 2 * kTokens);
  folder_.write("rows/a.bin", tokens.substr(0, 34));
  folder_.write("rows/b.bin", tokens.substr(32));
  const std::string text =
      "data: {path: " + folder_.file("rows") +
      ", format: bin, validation_fraction: 0}\n"
      "training: {seq_length: 16, global_batch_size: 2, max_steps: 20}\n"
      "optimizer: {lr: 0.002, weight_decay: 0.1}\ngradient_clipping: {max_norm: 0}\n"
      "lr_scheduler: {type: constant}\nmoe: {balance_loss: 0}\ncheckpoint: {init_from: " +
      adapter + ", interval: 20}\n";
  train(text, "run", 3, 2);
  std::ifstream metrics(folder_.file("run/metrics.jsonl"));
  std::size_t step = 0;
  for (std::string line; std::getline(metrics, line);) {
    const json parsed = json::parse(line);
    if (!parsed.contains("grad_norm")) continue;
    const double expected = one["losses"].at(step);
    EXPECT_NEAR(parsed["loss"].get<double>(), expected, 5e-6 * expected) << "step " << step;
    ++step;
  }
  EXPECT_EQ(step, one["losses"].size());
  // What was trained goes out and comes in again.
  const std::string run = folder_.file("run/checkpoints/step-0000000020");
  export_checkpoint({run, folder_.file("again"), {}});
  EXPECT_NEAR(loss_of(folder_.file("again")), loss_of(run), 1e-6);
}

class AdapterInOfLlama : public AdapterIn {};
INSTANTIATE_TEST_SUITE_P(Llama, AdapterInOfLlama, ::testing::Values("llama"));

TEST_P(AdapterInOfLlama, OtherKindsAreRefusedByName) {
  write_tokens();
  for (const auto& [key, value] :
       std::map<std::string, json>{{"use_dora", true},
                                   {"peft_type", "IA3"},
                                   {"init_lora_weights", "pissa"},
                                   {"lora_bias", true},
                                   {"trainable_token_indices", {1, 2}}}) {
    const std::string adapter = write_adapter(GetParam(), {{key, value}});
    EXPECT_NE(error_of({adapter, {}, 1, {}}).find(key), std::string::npos) << key;
  }
}

TEST_P(AdapterInOfLlama, AnAlphaOfOneMatrixCounts) {
  write_tokens();
  const double plain = loss_of(write_adapter(GetParam()));
  const double doubled = loss_of(write_adapter(GetParam(), {{"alpha_pattern",
                                                             {{"q_proj", 12},
                                                              {"v_proj", 12},
                                                              {"o_proj", 12},
                                                              {"gate_proj", 12},
                                                              {"up_proj", 12},
                                                              {"down_proj", 12}}}}));
  const double of_twice_alpha = loss_of(write_adapter(GetParam(), {{"lora_alpha", 12}}));
  EXPECT_EQ(doubled, of_twice_alpha);
  EXPECT_NE(doubled, plain);
}

// As in PEFT, the first pattern that matches decides, and not the longest one or the first by letters.
TEST_P(AdapterInOfLlama, OfSeveralPatternsOfAnAlphaTheFirstCounts) {
  write_tokens();
  const auto loss = [&](const std::string& patterns) {
    const std::string adapter = write_adapter(GetParam(), {{"alpha_pattern", {{"here", 1}}}});
    const std::string config = folder_.read("adapter/adapter_config.json");
    json whole = json::parse(config);
    const std::string before = whole["alpha_pattern"].dump();
    std::string text = whole.dump();
    text.replace(text.find(before), before.size(), patterns);
    folder_.write("adapter/adapter_config.json", text);
    return loss_of(adapter);
  };
  const double own = loss(R"({"q_proj": 24})");
  EXPECT_EQ(loss(R"({"q_proj": 24, "layers.0.self_attn.q_proj": 99})"), own);
  EXPECT_NE(loss(R"({"layers.0.self_attn.q_proj": 99, "q_proj": 24})"), own);
}

// PEFT's name for a module's own tensors where it also has an adapter, or where biases are trained.
class AdapterInOfAHead : public AdapterIn {};
INSTANTIATE_TEST_SUITE_P(Llama, AdapterInOfAHead, ::testing::Values("llama_head"));

TEST_P(AdapterInOfAHead, TensorsInsidePeftsModulesAreTheModels) {
  write_tokens();
  const std::string adapter = write_adapter(GetParam());
  const double expected = loss_of(adapter);
  const std::string file = folder_.read("adapter/adapter_model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const std::string header =
      replaced(file.substr(8, length), "lm_head.weight", "lm_head.base_layer.weight");
  folder_.write("adapter/adapter_model.safetensors",
                bytes_of_length(header.size()) + header + file.substr(8 + length));
  EXPECT_EQ(loss_of(adapter), expected);
}

}  // namespace
}  // namespace sherd::engine
