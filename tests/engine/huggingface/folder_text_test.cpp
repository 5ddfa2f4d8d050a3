// Texts through an unchanged folder: frequencies by the text's length, and ids without a tokenizer.
#include <gtest/gtest.h>

#include <sstream>

#include "engine/generate/decoder.h"
#include "engine/inference/scoring.h"
#include "engine/inference/text_model.h"
#include "engine/launch/machine.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

using Ids = std::vector<std::int32_t>;

class FolderText : public Folder {
 protected:
  static Ids tokens(std::int64_t count) {
    Ids ids;
    for (std::int64_t t = 0; t < count; ++t) {
      ids.push_back(static_cast<std::int32_t>((3 * t * t + 7 * t) % 56));
    }
    return ids;
  }

  // Last logits after each of the texts, one after the other in one decoder.
  std::vector<std::vector<float>> logits(const std::string& model,
                                         const std::vector<std::int64_t>& lengths) const {
    TextModel text({.checkpoint = model, .ranks = {}, .machine = cpu_machine()},
                   TextModel::Text::kWhenNeeded);
    std::vector<std::vector<float>> all;
    text.run(64,
             [&](const sharding::Rank&, Decoder& decoder) {
               for (const std::int64_t length : lengths) {
                 all.push_back(decoder.last_logits(tokens(length)));
               }
             },
             {});
    return all;
  }

  std::string answer_to(const std::string& model, const std::string& question) const {
    std::istringstream questions(question);
    std::string answers;
    answer({.model = {.checkpoint = model, .ranks = {}},
            .questions = &questions,
            .name = "q.jsonl",
            .on_answer = [&](const std::string& line) { answers += line; }});
    return answers;
  }
};

// Of this model 48 positions are the original length, and 64 are known. That either list gives what transformers has is
// seen by config_variants_test.cpp.
TEST_F(FolderText, OutgrowsLongropesOriginalLengthWithTheLogitsOfAFreshStart) {
  const std::string model = write_model("phi3_long");
  const auto one_by_one = logits(model, {47, 48, 49, 50, 40});
  EXPECT_EQ(one_by_one[1], logits(model, {48})[0]);
  EXPECT_EQ(one_by_one[2], logits(model, {49})[0]);
  EXPECT_EQ(one_by_one[3], logits(model, {50})[0]);
  EXPECT_EQ(one_by_one[4], logits(model, {40})[0])
      << "a shorter text takes the short factors again";
}

// Expected: what transformers computed for this model, loss times tokens.
TEST_F(FolderText, IsScoredByItsOwnLengthNotByTheContext) {
  const std::string model = write_model("phi3_long");
  const Ids all = tokens(kTokens);
  const json asked = {{"context", {all[0]}}, {"continuation", Ids(all.begin() + 1, all.end())}};
  const json answer = json::parse(answer_to(model, asked.dump()));
  EXPECT_NEAR(double(answer["log_likelihood"]), -32 * double(cases()["phi3_long"]["loss"]), 1e-4);
}

TEST_F(FolderText, OfIdsNeedsNoTokenizer) {
  const std::string model = write_model("llama");
  const json answer = json::parse(answer_to(model, R"({"context": [5], "continuation": [6, 7]})"));
  EXPECT_EQ(answer["tokens"], 2);
  const std::string error = test::error_text<DataError>(
      [&] { answer_to(model, R"({"context": "a", "continuation": "b"})"); });
  EXPECT_NE(error.find("has no tokenizer.json"), std::string::npos) << error;
}

// As a cache has it.
TEST_F(FolderText, ComesFromAFolderOfLinks) {
  const std::string model = write_model("llama"), snapshot = folder_.file("snapshot");
  folder_.write("llama/generation_config.json", R"({"eos_token_id": 2})");
  fs::create_directory(snapshot);
  for (const char* name : {"config.json", "model.safetensors", "generation_config.json"}) {
    fs::create_symlink(fs::path("../llama") / name, fs::path(snapshot) / name);
  }
  const std::string question = R"({"context": [5], "continuation": [6, 7]})";
  EXPECT_EQ(answer_to(snapshot, question), answer_to(model, question));
}

}  // namespace
}  // namespace sherd::engine
