// What is written as a folder: the bytes that were read, all of them or none.
#include <array>

#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

using Export = Folder;

struct StageAndWorld {
  int stage = 0, ranks = 1;
};

class ExportedAgain : public Folder {
 protected:
  void expect_same_bytes(const std::string& name, DType dtype, StageAndWorld run) {
    const std::string label =
        fmt::format("{} {} stage {} ranks {}", name, sherd::name_of(dtype), run.stage, run.ranks);
    const std::string model = write_model(name, dtype);
    const std::string output = fmt::format("run{}", number_++), to = folder_.file(output + "-hf");
    train(recipe(model), output, run.stage, run.ranks);
    export_checkpoint({checkpoint(output), to, {}});
    EXPECT_EQ(folder_.read(output + "-hf/model.safetensors"),
              folder_.read(name + "/model.safetensors"))
        << label;
    EXPECT_EQ(folder_.read(output + "-hf/tokenizer_config.json"),
              folder_.read(name + "/tokenizer_config.json"));
    const json before = json::parse(folder_.read(name + "/config.json"));
    const json after = json::parse(folder_.read(output + "-hf/config.json"));
    for (const auto& [key, value] : before.items()) {
      EXPECT_EQ(after.at(key), value) << label << " " << key;
    }
    EXPECT_EQ(after.at("torch_dtype"), after.at("dtype"));
    fs::remove_all(folder_.file(output));
    fs::remove_all(to);
  }

  static std::vector<std::string> families() {
    std::vector<std::string> names;
    for (const auto& [name, one] : cases().items()) {
      if (!name.ends_with("_whole")) names.push_back(name);  // exports hold a part
    }
    return names;
  }

  static constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kF16};

 private:
  int number_ = 0;
};

// Three families everywhere, the others in turn: every stage with every world, and with every type, and
// every world with every type.
TEST_F(ExportedAgain, HasTheBytesThatWereRead) {
  write_tokens();
  std::size_t turn = 0;
  for (const std::string& name : families()) {
    if (name == "llama" || name == "gpt2" || name == "stablelm") {
      for (int i = 0; i < 16; ++i) expect_same_bytes(name, DType::kF32, {i / 4, i % 4 + 1});
      for (int i = 0; i < 4; ++i) {
        expect_same_bytes(name, DType::kBF16, {i, i + 1});
        expect_same_bytes(name, DType::kF16, {i, i + 1});
      }
      continue;
    }
    for (int i = 0; i < 2; ++i, ++turn) {
      const auto stage = static_cast<int>(turn % 4), ranks = static_cast<int>(turn / 4 % 4) + 1;
      expect_same_bytes(name, kTypes[turn % 3], {stage, ranks});
    }
  }
  EXPECT_GE(turn, 48u);
}

class ExportedAgainSlow : public ExportedAgain {};

TEST_F(ExportedAgainSlow, HasTheBytesThatWereReadInEveryFamilyTypeStageAndWorld) {
  write_tokens();
  for (const std::string& name : families()) {
    for (const DType dtype : kTypes) {
      for (int i = 0; i < 16; ++i) expect_same_bytes(name, dtype, {i / 4, i % 4 + 1});
    }
  }
}

// Names of tensors and their bytes.
std::map<std::string, std::string> tensors_of(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::map<std::string, std::string> tensors;
  const json header = json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    tensors[name] =
        file.substr(8 + length + begin, entry["data_offsets"][1].get<std::size_t>() - begin);
  }
  return tensors;
}

TEST_F(Export, OfAModelOfSeveralPartsTheTextPartIsReadAndWritten) {
  write_tokens();
  for (const auto& [name, one] : cases().items()) {
    if (!name.ends_with("_whole")) continue;
    const std::string model = write_model(name);
    // As files of transformers 4, and as its version 5 has the names in memory.
    for (const bool inside : {false, true}) {
      if (inside) {
        std::string file = folder_.read(name + "/model.safetensors");
        std::uint64_t length = 0;
        std::memcpy(&length, file.data(), sizeof length);
        std::string header = file.substr(8, length);
        header = replaced(header, "\"language_model.model.", "\"model.language_model.");
        header = replaced(header, "\"language_model.lm_head.", "\"lm_head.");
        header = replaced(header, "\"vision_tower.", "\"model.vision_tower.");
        header = replaced(header, "\"vision_model.", "\"model.vision_model.");
        header = replaced(header, "\"multi_modal", "\"model.multi_modal");
        folder_.write(name + "/model.safetensors",
                      bytes_of_length(header.size()) + header + file.substr(8 + length));
      }
      const std::string output = name + (inside ? "-inside" : "-outside");
      train(recipe(model), output, 3, 2);
      export_checkpoint({checkpoint(output), folder_.file(output + "-hf"), {}});
      const auto read = tensors_of(folder_.read(name + "/model.safetensors"));
      const auto written = tensors_of(folder_.read(output + "-hf/model.safetensors"));
      std::size_t num_text = 0;
      for (const auto& [tensor, bytes] : read) {
        if (tensor.find("vision_tower.") != std::string::npos ||
            tensor.find("vision_model.") != std::string::npos ||
            tensor.find("multi_modal_projector.") != std::string::npos) {
          continue;
        }
        const std::string of_text = inside ? replaced(tensor, "model.language_model.", "model.")
                                           : tensor.substr(std::string("language_model.").size());
        ASSERT_TRUE(written.contains(of_text)) << of_text;
        EXPECT_TRUE(written.at(of_text) == bytes) << of_text;
        ++num_text;
      }
      EXPECT_EQ(num_text, written.size());
      EXPECT_GT(read.size(), num_text);
      const json before = json::parse(folder_.read(name + "/config.json"))["text_config"];
      const json after = json::parse(folder_.read(output + "-hf/config.json"));
      for (const auto& [key, value] : before.items()) EXPECT_EQ(after.at(key), value) << key;
      EXPECT_FALSE(after.contains("vision_config"));
      // What was exported is a model like any other.
      const std::string again = folder_.file(output + "-hf");
      train(recipe(again), output + "-again", 1, 2);
      export_checkpoint({checkpoint(output + "-again"), folder_.file(output + "-2"), {}});
      EXPECT_EQ(folder_.read(output + "-2/model.safetensors"),
                folder_.read(output + "-hf/model.safetensors"));
    }
  }
}

TEST_F(Export, NamedChatTemplatesGoThroughARunIntoAnExport) {
  write_tokens();
  const std::string model = write_model("llama"), name = "additional_chat_templates/tool_use.jinja";
  folder_.write("llama/chat_template.jinja", "plain");
  folder_.write("llama/" + name, "with tools");
  folder_.write("llama/additional_chat_templates/notes.txt", "no template");
  train(recipe(model), "run", 1, 2);
  fs::remove_all(folder_.file("llama/additional_chat_templates"));  // the run has its own
  export_checkpoint({checkpoint("run"), folder_.file("out"), {}});
  EXPECT_EQ(folder_.read("out/" + name), "with tools");
  EXPECT_EQ(folder_.read("out/chat_template.jinja"), "plain");
  EXPECT_FALSE(fs::exists(folder_.file("out/additional_chat_templates/notes.txt")));
  const json report = json::parse(folder_.read("out/sherd-export.json"));
  EXPECT_EQ(report["files"][name]["bytes"], 10);
}

TEST_F(Export, AnExportInPartsIsReadLikeAWholeOne) {
  write_tokens();
  const std::string model = write_model("llama_tied");
  train(recipe(model), "run", 3, 2);
  const std::string to = folder_.file("parts");
  const ExportSummary summary = export_checkpoint({checkpoint("run"), to, DType::kF32, 10'000});
  EXPECT_GT(summary.written.num_files, 3);
  train(recipe(to), "again", 2, 3);
  export_checkpoint({checkpoint("again"), folder_.file("whole"), {}});
  EXPECT_EQ(folder_.read("whole/model.safetensors"), folder_.read("llama_tied/model.safetensors"));
}

TEST_F(Export, AModelOfARecipeIsWrittenAsTheFamilyThatMeansTheSame) {
  write_tokens();
  const std::string base = "data: {path: " + folder_.file("many.bin") +
                           ", format: bin, validation_fraction: 0}\n" +
                           "training: {seq_length: 16, global_batch_size: 12, max_steps: 1}\n" +
                           "checkpoint: {interval: 1}\n";
  const std::string sizes =
      "num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 56";
  train(base + "model: {" + sizes + ", num_kv_heads: 2}\n", "llama", 3, 2);
  export_checkpoint({checkpoint("llama"), folder_.file("llama-hf"), {}});
  EXPECT_EQ(json::parse(folder_.read("llama-hf/config.json"))["model_type"], "llama");
  train(base + "model: {" + sizes +
            ", norm: layernorm, positions: learned, activation: gelu, bias: true, "
            "tie_embeddings: true}\n",
        "gpt", 0, 1);
  export_checkpoint({checkpoint("gpt"), folder_.file("gpt-hf"), DType::kBF16});
  const json config = json::parse(folder_.read("gpt-hf/config.json"));
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["dtype"], "bfloat16");
  EXPECT_EQ(config["n_inner"], 128);
  // Its own folder gives the run's loss.
  train(base + "model: {" + sizes + ", norm_placement: post, activation: relu2}\n", "odd", 0, 1);
  EXPECT_NE(test::error_text<UsageError>([&] {
              export_checkpoint({checkpoint("odd"), folder_.file("odd-hf"), {}});
            }).find("no model of Hugging Face"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_.file("odd-hf")));
}

TEST_F(Export, AFolderMayBeNamedWithASlash) {
  write_tokens();
  train(recipe(write_model("llama_tied")), "run", 0, 1);
  export_checkpoint({checkpoint("run"), folder_.file("out") + "/", {}});
  EXPECT_TRUE(fs::exists(folder_.file("out/model.safetensors")));
}

// The family has biases that the model lacks, and names for the layer that predicts further tokens.
TEST_F(Export, OfAMixtureWithZeroBiasesKeepsTheLayersThatPredict) {
  write_tokens();
  train("data: {path: " + folder_.file("many.bin") +
            ", format: bin, validation_fraction: 0}\n"
            "training: {seq_length: 16, global_batch_size: 12, max_steps: 1}\n"
            "checkpoint: {interval: 1}\nmtp: {num_layers: 1}\n"
            "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 56}\n"
            "moe: {num_experts: 4, experts_per_token: 2, ffn_hidden_size: 16, score: sigmoid, "
            "normalize_weights: true}\n",
        "run", 0, 1);
  export_checkpoint({checkpoint("run"), folder_.file("out"), {}});
  const json config = json::parse(folder_.read("out/config.json"));
  EXPECT_EQ(config["num_nextn_predict_layers"], 1);
  const auto written = tensors_of(folder_.read("out/model.safetensors"));
  const auto has = [&](const char* part) {
    return std::ranges::any_of(
        written, [&](const auto& one) { return one.first.find(part) != std::string::npos; });
  };
  EXPECT_TRUE(has("model.layers.2.eh_proj"));
  EXPECT_TRUE(has("e_score_correction_bias"));
}

// PEFT opens the model of all parts, in which the text model's layers have longer names.
TEST_F(Export, AnAdapterOfAModelOfSeveralPartsHasItsNames) {
  write_tokens();
  for (const char* name : {"gemma3_whole", "mistral3_whole"}) {
    if (!cases().contains(name)) continue;
    const std::string model = write_model(name);
    const std::string output = std::string(name) + "-run", to = output + "-peft";
    train(recipe(model) + "adapter: {type: lora, rank: 2, targets: [attention.query, mlp.down]}\n",
          output, 0, 1);
    export_checkpoint({checkpoint(output), folder_.file(to), {}});
    for (const auto& [tensor, bytes] :
         tensors_of(folder_.read(to + "/adapter_model.safetensors"))) {
      EXPECT_TRUE(tensor.starts_with("base_model.model.model.language_model.layers.")) << tensor;
    }
    const json config = json::parse(folder_.read(to + "/adapter_config.json"));
    EXPECT_EQ(config["target_modules"],
              R"((?:.*\.)?language_model\.(?:.*\.)?(?:q_proj|down_proj))");
  }
}

TEST_F(Export, WeightsBeyondF16ArentWrittenAsInfinities) {
  const std::vector<sharding::StateTensor> tensors = {
      {"final_norm.weight", "param", {300}, DType::kF32}};
  const auto built = test::build_checkpoint(folder_.path(), 1, tensors, test::even_cut(tensors, 1));
  const checkpoint::Checkpoint saved(checkpoint::posix_disk(), built.path);
  huggingface::FolderToWrite folder;
  folder.to = folder_.file("out");
  folder.dtype = DType::kF16;
  folder.family = huggingface::find_family("llama");
  folder.model.parameters = {{"final_norm.weight", {300}}};
  folder.model.head_width = 1;
  EXPECT_NE(test::error_text<DataError>([&] {
              huggingface::export_folder(checkpoint::posix_disk(), &saved, folder);
            }).find("is beyond what f16 holds"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder.to));
}

}  // namespace
}  // namespace sherd::engine
