// Averages of models. Sums of unequal models: tests/reference/huggingface/merges.py.

#include "engine/inference/merge.h"

#include <limits>

#include "tests/engine/huggingface/folder_support.h"
#include "tests/support/models/small_tokenizer.h"

namespace sherd::engine {
namespace {

using Weights = std::vector<double>;

const json& merges() {
  static const json kCases = [] {
    std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/inference/merges.json");
    return json::parse(file);
  }();
  return kCases;
}

class Merge : public Folder {
 protected:
  // Model `number` of the script.
  std::string write_one(const std::string& name, int number, const std::string& output) {
    const json& one = cases().at(name);
    const std::string header = one["header"];
    std::vector<std::pair<std::int64_t, std::string>> order;
    const json parsed = json::parse(header);
    for (const auto& [tensor, entry] : parsed.items()) {
      if (tensor != "__metadata__") order.emplace_back(entry["data_offsets"][0], tensor);
    }
    std::sort(order.begin(), order.end());
    std::string data;
    for (const auto& [begin, tensor] : order) {
      const auto shape = parsed[tensor]["shape"].get<std::vector<std::int64_t>>();
      const std::int64_t numel =
          std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
      for (std::int64_t i = 0; i < numel; ++i) {
        append<float>(data, weight_of(tensor, shape.size() == 1, i + std::int64_t{977} * number) *
                                static_cast<float>(1.0 + 0.1 * number));
      }
    }
    folder_.write(output + "/config.json", one["config"].get<std::string>());
    folder_.write(output + "/model.safetensors", bytes_of_length(header.size()) + header + data);
    folder_.write(output + "/tokenizer_config.json",
                  fmt::format("{{\"eos_token\": \"<|end|>\", \"made_by\": {}}}", number));
    folder_.write(output + "/chat_template.jinja", fmt::format("{{# {} #}}", number));
    return folder_.file(output);
  }

  MergeRequest request(const std::vector<std::string>& inputs, Weights weights = {}) {
    MergeRequest merge{.inputs = inputs, .weights = std::move(weights), .to = folder_.file(next())};
    return merge;
  }
  std::string merged(const std::vector<std::string>& inputs, Weights weights = {},
                     std::optional<DType> dtype = {}) {
    MergeRequest merge = request(inputs, std::move(weights));
    merge.dtype = dtype;
    merge_models(merge);
    return folder_.read(last() + "/model.safetensors");
  }
  template <class Error>
  std::string refusal(const std::vector<std::string>& inputs, Weights weights = {}) {
    const MergeRequest merge = request(inputs, std::move(weights));
    const std::string text = test::error_text<Error>([&] { merge_models(merge); });
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_FALSE(fs::exists(merge.to)) << text;
    return text;
  }
  std::string exported(const std::string& checkpoint, std::optional<DType> dtype = {}) {
    export_checkpoint({checkpoint, folder_.file(next()), dtype});
    return folder_.read(last() + "/model.safetensors");
  }
  std::string last() const { return fmt::format("out{}", number_); }

  // Weights move: the values are no round numbers.
  std::string trained(const std::string& model, const std::string& output, int stage, int ranks,
                      const std::string& more = "") {
    train(replaced(recipe(model, more), "lr: 0,", fmt::format("lr: 0.{},", 3 + stage)), output,
          stage, ranks);
    return checkpoint(output);
  }

 private:
  std::string next() { return fmt::format("out{}", ++number_); }
  int number_ = 0;
};

std::uint64_t checksum_of(const std::string& file, const std::string& name) {
  std::uint64_t length = 0, sum = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const json entry = json::parse(file.substr(8, length)).at(name);
  const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
  const std::size_t size = entry["dtype"] == "F32" ? 4 : 2;
  for (std::size_t i = 0; i < (end - begin) / size; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, file.data() + 8 + length + begin + i * size, size);
    sum += (i + 1) * bits;
  }
  return sum;
}

TEST_F(Merge, IsTheSumThatTorchForms) {
  for (const auto& [name, one] : merges().items()) {
    const auto weights = one["weights"].get<Weights>();
    std::vector<std::string> inputs;
    for (int k = 0; k < static_cast<int>(weights.size()); ++k) {
      inputs.push_back(write_one(name, k, fmt::format("{}{}", name, k)));
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string file = merged(inputs, weights, dtype);
      for (const auto& [tensor, sums] : one["tensors"].items()) {
        EXPECT_EQ(fmt::format("{:016x}", checksum_of(file, tensor)),
                  sums[std::string(name_of(dtype))].get<std::string>())
            << name << " " << tensor << " " << name_of(dtype);
      }
    }
  }
}

TEST_F(Merge, OfEqualModelsIsTheModelBitForBit) {
  write_tokens();
  for (const std::string name : {"llama", "gpt2"}) {
    const std::string model = write_one(name, 1, name);
    const std::string run = trained(model, name + "-run", 2, 2);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const std::string one = exported(run, dtype);
      EXPECT_TRUE(merged({run, run}, {}, dtype) == one) << name << name_of(dtype);
      EXPECT_TRUE(merged({run, run, run}, {0.7, 0.2, 0.1}, dtype) == one) << name << name_of(dtype);
      EXPECT_TRUE(merged({folder_.file(last()), folder_.file(last())}) == one);  // in its own type
    }
    EXPECT_TRUE(merged({model, model}) == folder_.read(name + "/model.safetensors"));
  }
}

TEST_F(Merge, WithAWeightOfOneIsThatModelWithTheFilesOfTheFirst) {
  const std::string a = write_one("llama", 0, "a"), b = write_one("llama", 2, "b");
  EXPECT_TRUE(merged({a, b}, {1, 0}) == folder_.read("a/model.safetensors"));
  EXPECT_TRUE(merged({a, b}, {0, 5}) == folder_.read("b/model.safetensors"));
  for (const char* file : {"/tokenizer_config.json", "/chat_template.jinja"}) {
    EXPECT_EQ(folder_.read(last() + file), folder_.read(std::string("a") + file));
  }
  const json config = json::parse(folder_.read(last() + "/config.json"));
  const json before = json::parse(folder_.read("a/config.json"));
  for (const auto& [key, value] : before.items()) EXPECT_EQ(config.at(key), value) << key;
  const json note = json::parse(folder_.read(last() + "/sherd-export.json"));
  EXPECT_EQ(note["from"], fmt::format("0 {} + 1 {}", a, b));
}

TEST_F(Merge, DoesntDependOnTheWorldsThatWroteTheCheckpointsNorOnItsOwnRanks) {
  write_tokens();
  const std::string model = write_one("llama", 1, "model");
  const std::string one = trained(model, "one", 1, 1), other = trained(model, "other", 3, 4);
  const std::string mesh = trained(model, "mesh", 2, 4,
                                   "parallelism: {tensor_parallel_degree: 2, "
                                   "pipeline_parallel_degree: 2}\n");
  const std::string sum = merged({one, other, mesh, model}, {1, 2, 3, 4});
  exported(one);
  const std::string folder_of_one = folder_.file(last());
  exported(mesh);
  EXPECT_TRUE(merged({folder_of_one, other, folder_.file(last()), model}, {1, 2, 3, 4}) == sum);
  for (const int ranks : {1, 3}) {
    MergeRequest again = request({one, other, mesh, model}, {0.5, 1, 1.5, 2});
    again.ranks = ranks;
    merge_models(again);
    EXPECT_TRUE(folder_.read(last() + "/model.safetensors") == sum) << ranks;
  }
}

TEST_F(Merge, TakesAveragesOfTheWeightsIfAskedFor) {
  write_tokens();
  const std::string model = write_one("llama", 1, "model");
  train(replaced(recipe(model, "averages: {type: ema, decay: 0.5, start_step: 0}\n"), "lr: 0,",
                 "lr: 0.5,"),
        "run", 2, 2, {"training.max_steps=3"});
  const std::string run = folder_.file("run/checkpoints/step-0000000003");
  export_checkpoint(
      {.checkpoint = run, .to = folder_.file("average"), .dtype = {}, .average = true});
  MergeRequest average = request({run, run});
  average.average = true;
  merge_models(average);
  EXPECT_TRUE(folder_.read(last() + "/model.safetensors") ==
              folder_.read("average/model.safetensors"));
  EXPECT_FALSE(merged({run, run}) == folder_.read("average/model.safetensors"));
  average.inputs[1] = model;
  average.to += "2";
  EXPECT_NE(test::error_text<UsageError>([&] {
              merge_models(average);
            }).find("--average needs a checkpoint"),
            std::string::npos);
}

TEST_F(Merge, OfAModelThatARecipeDescribesIsPossible) {
  write_tokens();
  const auto scratch = [&](const std::string& output, int seed) {
    train(
        "model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2, vocab_size: 56, "
        "bias: false, activation: gelu, norm: layernorm, positions: learned, max_seq_length: 32}\n"
        "data: {path: " +
            folder_.file("many.bin") +
            ", format: bin, validation_fraction: 0}\n"
            "training: {seq_length: 16, global_batch_size: 2, max_steps: 1}\n"
            "checkpoint: {interval: 1}\nrun: {seed: " +
            std::to_string(seed) + "}\n",
        output, 1, 2);
    return checkpoint(output);
  };
  const std::string a = scratch("a", 1), b = scratch("b", 2);
  EXPECT_TRUE(merged({a, a}) == exported(a));
  EXPECT_FALSE(merged({a, b}) == exported(a));
}

TEST_F(Merge, OfOtherShapesArchitecturesOrTokensIsRefused) {
  const std::string a = write_one("llama", 0, "a");
  const std::string tied = write_one("llama_tied", 0, "tied"), gpt2 = write_one("gpt2", 0, "gpt2");
  EXPECT_EQ(refusal<UsageError>({a, tied}),
            tied + ": lacks the parameter head.weight [56, 32], which " + a +
                " has; models of one shape can be merged.");
  EXPECT_NE(refusal<UsageError>({a, gpt2}).find("parameter "), std::string::npos);
  folder_.write("far/config.json", replaced(folder_.read("a/config.json"), "10000.0", "20000.0"));
  folder_.write("far/model.safetensors", folder_.read("a/model.safetensors"));
  EXPECT_NE(refusal<UsageError>({a, folder_.file("far")}).find(": model.rope_theta is 20000"),
            std::string::npos);
  const json tokens = test::small_tokenizer();
  folder_.write("a/tokenizer.json", tokens.dump());
  folder_.write("b/tokenizer.json", tokens.dump(1));  // the same tokens
  write_one("llama", 1, "b");
  EXPECT_FALSE(merged({a, folder_.file("b")}).empty());
  folder_.write("b/tokenizer_config.json", "{}");
  folder_.write("b/tokenizer.json", replaced(tokens.dump(), "<|end|>", "<|End|>"));
  EXPECT_EQ(refusal<UsageError>({a, folder_.file("b")}),
            folder_.file("b") + ": token 258 isn't that of " + a +
                "; models of one vocabulary can be merged.");
}

// Layers that predict further tokens are merged if all inputs have them, and left out otherwise.
TEST_F(Merge, OfLayersThatPredictNeedsThemInEveryModel) {
  write_tokens();
  const auto run = [&](const std::string& output, const std::string& more) {
    train("data: {path: " + folder_.file("many.bin") +
              ", format: bin, validation_fraction: 0}\n"
              "training: {seq_length: 16, global_batch_size: 12, max_steps: 1}\n"
              "checkpoint: {interval: 1}\n" +
              more +
              "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 56}\n"
              "moe: {num_experts: 4, experts_per_token: 2, ffn_hidden_size: 16, score: sigmoid, "
              "normalize_weights: true, correction_bias: true}\n",
          output, 0, 1);
    return checkpoint(output);
  };
  const std::string with = run("with", "mtp: {num_layers: 1}\n"), without = run("without", "");
  EXPECT_NE(merged({with, with}).find("eh_proj"), std::string::npos);
  EXPECT_EQ(merged({with, without}).find("eh_proj"), std::string::npos);
  exported(with);
  EXPECT_EQ(merged({with, folder_.file(last())}).find("eh_proj"), std::string::npos);
}

TEST_F(Merge, OfAdaptersIsRefused) {
  write_tokens();
  const std::string model = write_one("llama", 0, "model");
  const std::string run = trained(model, "run", 1, 1, "adapter: {type: lora, rank: 2}\n");
  const std::string why =
      ": holds an adapter. The average of A and of B isn't that of B A, so adapters aren't merged; "
      "write whole models with `sherd export --merge` and merge those.";
  EXPECT_EQ(refusal<UsageError>({run, run}), run + why);
  EXPECT_EQ(refusal<UsageError>({model, run}), run + why);
  exported(run);
  EXPECT_EQ(refusal<UsageError>({folder_.file(last()), model}), folder_.file("out3") + why);
}

TEST_F(Merge, NamesInputsAndWeightsThatCantBeUsed) {
  const std::string a = write_one("llama", 0, "a"), b = write_one("llama", 1, "b");
  EXPECT_NE(refusal<UsageError>({a}).find("at least two models"), std::string::npos);
  EXPECT_NE(refusal<DataError>({a, folder_.file("none")}).find("none"), std::string::npos);
  EXPECT_NE(refusal<UsageError>({a, b}, {1}).find("1 values for 2 models"), std::string::npos);
  EXPECT_NE(refusal<UsageError>({a, b}, {1.5, -0.5}).find("at least 0"), std::string::npos);
  EXPECT_NE(refusal<UsageError>({a, b}, {0, 0}).find("above 0"), std::string::npos);
  MergeRequest there = request({a, b});
  there.to = folder_.file("there");
  folder_.write("there/mine", "kept");
  EXPECT_NE(test::error_text<UsageError>([&] { merge_models(there); }), "(no error)");
  EXPECT_EQ(folder_.read("there/mine"), "kept");
}

TEST_F(Merge, OfADamagedInputIsOneLineAndLeavesNothing) {
  write_tokens();
  const std::string a = write_one("llama", 0, "a"), b = write_one("llama", 1, "b");
  std::string bad = folder_.read("b/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bad.data() + bad.size() - 4, &nan, sizeof nan);
  folder_.write("b/model.safetensors", bad);
  EXPECT_NE(refusal<DataError>({a, b}).find("is nan; weights must be finite"), std::string::npos);
  bad.resize(bad.size() - 4);
  folder_.write("b/model.safetensors", bad);
  EXPECT_NE(refusal<DataError>({a, b}).find(b), std::string::npos);

  const std::string run = trained(a, "run", 3, 2);
  for (const auto& file : fs::directory_iterator(run)) {
    if (file.path().extension() == ".json") continue;
    const std::string name = "run/checkpoints/step-0000000001/" + file.path().filename().string();
    std::string bytes = folder_.read(name);
    for (std::size_t i = 64; i < bytes.size(); i += 64) bytes[i] = static_cast<char>(bytes[i] ^ 1);
    folder_.write(name, bytes);
  }
  EXPECT_NE(refusal<DataError>({a, run}).find(run), std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
