// Tokens that a run adds to its model's tokenizer: where their rows begin, that they are trained alike at every
// world and stage, and that what is exported knows them.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/data/tokenizer/tokenizer.h"
#include "engine/inference/evaluate.h"
#include "engine/inference/export.h"
#include "engine/run/run.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

using nlohmann::json;

constexpr std::int64_t kOld = 259, kNew = 261,
                       kWidth = 16;  // rows before and after; small_tokenizer.h

class AddedTokens : public ::testing::Test {
 protected:
  AddedTokens() {
    write_data(folder_);
    std::string lines;
    for (int i = 0; i < 24; ++i) {
      const json line = {{"instruction", std::string(static_cast<std::size_t>(1 + i % 9), 'q')},
                         {"output", "the <|bot|> " + std::to_string(i)}};
      lines += line.dump() + "\n";
    }
    folder_.write("chat.jsonl", lines);
  }

  // A Hugging Face folder whose tokenizer knows neither of the template's two tokens.
  void make_model(bool tied) const {
    train_text("base",
               fmt::format("model: {{num_layers: 2, hidden_size: {}, num_attention_heads: 2, "
                           "vocab_size: {}, max_seq_length: 48, tie_embeddings: {}}}\n"
                           "data: {{path: {}}}\n"
                           "training: {{seq_length: 16, global_batch_size: 2, max_steps: 1}}\n",
                           kWidth, kOld, tied, folder_.file("data/*.txt")),
               1);
    engine::export_checkpoint({checkpoint("base", 1), folder_.file("model"), {}});
    folder_.write("model/tokenizer.json", test::small_tokenizer().dump());
    folder_.write(
        "model/tokenizer_config.json",
        R"({"eos_token": "<|end|>", "added_tokens_decoder": {"258": {"content": "<|end|>"}}})");
    folder_.write("model/chat_template.jinja",
                  "{% for m in messages %}{% if m.role == 'user' %}<|user|>{% else %}<|bot|>"
                  "{% endif %}{{ m.content }}<|end|>{% endfor %}"
                  "{% if add_generation_prompt %}<|bot|>{% endif %}");
  }

  void train(const std::string& output, int ranks, int stage, int max_steps,
             const std::string& adapter, std::vector<std::string> sets = {}) const {
    sets.push_back(fmt::format("zero_optimization.stage={}", stage));
    train_text(output,
               fmt::format("model: {{from: {}, add_special_tokens: [<|user|>, <|bot|>]}}\n{}"
                           "data: {{path: {}, format: chat, validation_fraction: 0.25}}\n"
                           "training: {{seq_length: 48, global_batch_size: 4, micro_batch_size: 1, "
                           "max_steps: {}}}\nzero_optimization: {{grad_sync: every_micro_step}}\n"
                           "lr_scheduler: {{decay_steps: 8}}\noptimizer: {{lr: 0.01}}\n",
                           folder_.file("model"), adapter, folder_.file("chat.jsonl"), max_steps),
               ranks, std::move(sets));
  }
  static std::string adapter(const std::string& modules) {
    return "adapter: {type: lora, rank: 2, targets: [q_proj, down_proj], modules_to_save: " +
           modules + "}\n";
  }

  std::string checkpoint(const std::string& output, int step) const {
    return folder_.file(fmt::format("{}/checkpoints/step-{:010}", output, step));
  }

  void export_to(const std::string& output, const std::string& to, int step,
                 bool merge = false) const {
    engine::ExportRequest request{checkpoint(output, step), folder_.file(to), DType::kF32};
    request.merge = merge;
    engine::export_checkpoint(request);
  }

  // A tensor's values, from a file of f32 tensors.
  std::vector<float> values_of(const std::string& file, const std::string& tensor) const {
    const std::string bytes = folder_.read(file);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const json header = json::parse(bytes.substr(8, length));
    const json offsets = header.at(tensor).at("data_offsets");
    const std::size_t begin = offsets[0], end = offsets[1];
    std::vector<float> values((end - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + 8 + length + begin, end - begin);
    return values;
  }

  // A row for each new token, the mean of the others; added up here by columns.
  static std::vector<float> with_mean_rows(std::vector<float> rows) {
    const std::size_t width = kWidth;
    EXPECT_EQ(rows.size(), kOld * width);
    for (std::int64_t row = kOld; row < kNew; ++row) {
      for (std::size_t column = 0; column < width; ++column) {
        double sum = 0.0;
        for (std::size_t i = column; i < kOld * width; i += width) sum += double{rows[i]};
        rows.push_back(static_cast<float>(sum / kOld));
      }
    }
    return rows;
  }

  test::TempFolder folder_{test::memory_folder()};

 private:
  void train_text(const std::string& output, const std::string& text, int ranks,
                  std::vector<std::string> sets = {}) const {
    sets.push_back("run.output_dir=" + folder_.file(output));
    sets.emplace_back("checkpoint.interval=4");
    ::testing::internal::CaptureStdout();
    try {
      engine::train(engine::resolve_recipe(
                        {.path = "tokens.yaml", .text = text, .sets = sets, .ranks = ranks}),
                    engine::cpu_machine());
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    ::testing::internal::GetCapturedStdout();
  }
};

TEST_F(AddedTokens, BeginAsTheMeanOfTheModelsRows) {
  make_model(false);
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  for (const std::string& mode : {std::string(), adapter("[embed_tokens, lm_head]")}) {
    const std::string name = mode.empty() ? "all" : "lora";
    train(name, 2, 3, 1, mode, {"optimizer.lr=0", "checkpoint.init_from=" + folder_.file("model")});
    export_to(name, name + "-out", 1, !mode.empty());
    for (const std::string& tensor : {embedding, head}) {
      EXPECT_EQ(values_of(name + "-out/model.safetensors", tensor),
                with_mean_rows(values_of("model/model.safetensors", tensor)))
          << name << " " << tensor;
    }
  }
}

TEST_F(AddedTokens, AreTrainedWithTheSameBitsAtEveryStageAndWorld) {
  for (const bool tied : {false, true}) {
    make_model(tied);
    const std::string mode = adapter(tied ? "[embed_tokens]" : "[embed_tokens, lm_head]");
    train("whole", 1, 0, 8, mode);
    train("parts", 4, 2, 4, mode);
    train("parts", 2, 3, 8, mode);
    EXPECT_EQ(final_state(folder_, "parts"), final_state(folder_, "whole"));
    train("nf4", 1, 0, 8, mode, {"adapter.base_dtype=nf4"});
    train("nf4-apart", 2, 3, 8, mode, {"adapter.base_dtype=nf4"});
    EXPECT_EQ(final_state(folder_, "nf4-apart"), final_state(folder_, "nf4"));
    // The embeddings of tokens in every conversation move away from their initial values.
    export_to("whole", "merged", 8, true);
    const std::vector<float> rows =
        values_of("merged/model.safetensors", "model.embed_tokens.weight");
    const std::vector<float> first =
        with_mean_rows(values_of("model/model.safetensors", "model.embed_tokens.weight"));
    for (const std::int64_t row : {kOld, kOld + 1}) {
      const auto at = static_cast<std::ptrdiff_t>(row * kWidth);
      EXPECT_FALSE(std::equal(rows.begin() + at, rows.begin() + at + kWidth, first.begin() + at));
    }
    for (const char* left : {"base", "model", "whole", "parts", "nf4", "nf4-apart", "merged"}) {
      std::filesystem::remove_all(folder_.file(left));
    }
  }
}

TEST_F(AddedTokens, AreInTheFilesOfAnAdapterAndOfAMergedModel) {
  make_model(true);
  train("run", 2, 2, 4, adapter("[embed_tokens]"));
  export_to("run", "peft", 4);
  export_to("run", "merged", 4, true);
  const json config = json::parse(folder_.read("peft/adapter_config.json"));
  EXPECT_EQ(config.at("modules_to_save"), json({"embed_tokens", "lm_head"}));
  const std::string peft = "peft/adapter_model.safetensors", prefix = "base_model.model.";
  const std::vector<float> rows = values_of(peft, prefix + "model.embed_tokens.weight");
  EXPECT_EQ(std::ssize(rows), kNew * kWidth);
  EXPECT_EQ(values_of(peft, prefix + "lm_head.weight"), rows);
  EXPECT_EQ(values_of("merged/model.safetensors", "model.embed_tokens.weight"), rows);
  EXPECT_EQ(json::parse(folder_.read("merged/config.json")).at("vocab_size"), kNew);
  for (const std::string folder : {"peft", "merged"}) {
    const json added = json::parse(folder_.read(folder + "/tokenizer.json")).at("added_tokens");
    ASSERT_EQ(added.size(), 3u) << folder;
    EXPECT_EQ(added[1].at("id"), kOld);
    EXPECT_EQ(added[2].at("content"), "<|bot|>");
    EXPECT_EQ(added[2].at("special"), true);
    const json settings = json::parse(folder_.read(folder + "/tokenizer_config.json"));
    EXPECT_EQ(settings.at("added_tokens_decoder").at("260").at("content"), "<|bot|>");
    // What reads these files has the ids that the run had.
    const std::string text = "<|user|>the<|bot|>th<|end|>";
    std::vector<std::int32_t> from_files, in_run;
    tokenizer::Encoder(tokenizer::Tokenizer::open(folder_.file(folder)))
        .encode(text, tokenizer::SpecialTokens::kAsTokens, from_files);
    tokenizer::Encoder(tokenizer::Tokenizer::open(folder_.file("model"), {"<|user|>", "<|bot|>"}))
        .encode(text, tokenizer::SpecialTokens::kAsTokens, in_run);
    EXPECT_EQ(from_files, (std::vector<std::int32_t>{259, 257, 260, 256, 258}));
    EXPECT_EQ(in_run, from_files);
  }
  const auto loss = [&](const std::string& model) {
    return engine::evaluate_checkpoint(
               {model,
                {"data.format=chat", "data.path=" + folder_.file("chat.jsonl"),
                 "data.validation_path=" + folder_.file("chat.jsonl"), "training.seq_length=48"},
                1,
                {}})
        .loss;
  };
  EXPECT_NEAR(loss(folder_.file("merged")), loss(checkpoint("run", 4)), 2e-6);
}

TEST_F(AddedTokens, StayTextWhereAMessageSpellsThem) {
  const auto tokenizer =
      tokenizer::Tokenizer::parse(test::small_tokenizer().dump(), "small", {"<|bot|>"});
  EXPECT_EQ(tokenizer->vocab_size(), kOld + 1);
  tokenizer::Encoder encoder(tokenizer);
  std::vector<std::int32_t> ids;
  const std::string text = "<|bot|><|bot|>";
  encoder.encode_part(text, std::string(7, '\1') + std::string(7, '\0'), false, ids);
  ASSERT_EQ(ids.size(), 8u);
  EXPECT_EQ(ids[0], kOld);
  EXPECT_EQ(tokenizer->decode(ids), "<|bot|>") << "a special token is left out";
  EXPECT_EQ(tokenizer->decode(ids, false), text);
}

TEST_F(AddedTokens, AreRefusedInALineWhereTheyWouldntBeTrainedOrAreThere) {
  make_model(false);
  const auto refusal = [&](const std::string& mode, std::vector<std::string> sets) {
    return test::error_text<UsageError>([&] { train("run", 1, 0, 1, mode, std::move(sets)); });
  };
  EXPECT_EQ(refusal(adapter("[embed_tokens]"), {}),
            "tokens.yaml:2: model.add_special_tokens adds rows to lm_head, which "
            "adapter.modules_to_save doesn't have, so they would never be trained. Set "
            "adapter.modules_to_save: [embed_tokens, lm_head].");
  EXPECT_EQ(refusal("", {"model.add_special_tokens=[<|end|>]"}),
            "model.add_special_tokens: \"<|end|>\" is a token of " +
                folder_.file("model/tokenizer.json") + " already; leave it out.");
  EXPECT_EQ(
      refusal("", {"model.add_special_tokens=[a1, b1, a1]"}),
      "--set model.add_special_tokens=[a1, b1, a1]: model.add_special_tokens has \"a1\" twice.");
  EXPECT_EQ(refusal("", {"data.format=bytes"}),
            "tokens.yaml:1: model.add_special_tokens needs data.tokenizer, the tokenizer that they "
            "are added to.");
}

}  // namespace
}  // namespace sherd::testing
