// Text and likelihoods from a small model of characters, trained once for all of these.
#include "engine/inference/generation.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "engine/inference/scoring.h"
#include "engine/inference/text_model.h"
#include "engine/run/run.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

constexpr std::int64_t kContext = 24;
constexpr const char* kRecipe = R"(run: {{output_dir: {0}/run, device: cpu, num_threads: 1}}
model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 4, num_kv_heads: 2, vocab_size: 15}}
data: {{path: {0}/text.txt, format: chars}}
training: {{seq_length: {1}, micro_batch_size: 4, max_steps: 40, eval_batches: 1}}
optimizer: {{lr: 0.01}}
parallelism: {{data_parallel_shard_degree: 2}}
zero_optimization: {{stage: 3}}
checkpoint: {{interval: 40}}
)";

class GenerationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("the {} cat sat. ", i % 7);
    folder_->write("text.txt", text);
    train(resolve_recipe({.path = "small.yaml",
                          .text = fmt::format(kRecipe, folder_->path(), kContext),
                          .sets = {},
                          .ranks = {}}));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static TrainedModelRequest model(std::int64_t ranks = 1, Strings sets = {}) {
    return {.checkpoint = folder_->file("run/checkpoints/" + checkpoint::step_directory_name(40)),
            .sets = std::move(sets),
            .ranks = ranks};
  }

  static Strings texts(const TrainedModelRequest& model, const Strings& prompts,
                       const GenerationOptions& options, Strings* notes = nullptr) {
    GenerationRequest request{.model = model, .options = options, .prompts = prompts};
    Strings texts;
    request.on_note = [&](const std::string& note) {
      if (notes) notes->push_back(note);
    };
    request.on_end = [&](std::size_t prompt, const GeneratedText& text) {
      EXPECT_EQ(prompt, texts.size()) << "in order";
      texts.push_back(text.text);
    };
    generate(request);
    return texts;
  }

  static std::vector<Json> answers(const Strings& questions, std::int64_t ranks = 1,
                                   std::int64_t context = 0) {
    std::string lines;
    for (const std::string& question : questions) lines += question + "\n";
    std::istringstream stream(lines);
    std::vector<Json> answers;
    answer({.model = model(ranks),
            .context = context,
            .questions = &stream,
            .name = "questions.jsonl",
            .on_note = {},
            .on_answer = [&](const std::string& line) { answers.push_back(Json::parse(line)); }});
    return answers;
  }
  static double log_likelihood(const Json& question, std::int64_t context = 0) {
    return answers({question.dump()}, 1, context).at(0).at("log_likelihood");
  }

  static std::unique_ptr<test::TempFolder> folder_;
};
std::unique_ptr<test::TempFolder> GenerationTest::folder_;

// A program that uses a model has all of it, however its run was cut.
TEST_F(GenerationTest, UsesTheModelOfTensorRanksThatShareTokens) {
  const std::string output = folder_->file("cut");
  train(resolve_recipe(
      {.path = "small.yaml",
       .text = fmt::format(kRecipe, folder_->path(), kContext),
       .sets = {"run.output_dir=" + output, "training.max_steps=2", "training.sample_tokens=5",
                "parallelism.tensor_parallel_degree=2", "parallelism.sequence_parallel=true"},
       .ranks = {}}));
  TrainedModelRequest cut = model();
  cut.checkpoint = output + "/checkpoints/" + checkpoint::step_directory_name(2);
  EXPECT_EQ(texts(cut, {"the "}, {.sampling = {.num_tokens = 7}})[0].size(), 7);
  cut.sets = {"parallelism.sequence_parallel=true"};
  const std::string refused =
      test::error_text<UsageError>([&] { texts(cut, {"the "}, {.sampling = {.num_tokens = 1}}); });
  EXPECT_NE(refused.find("here the model isn't cut"), std::string::npos) << refused;
}

const GenerationOptions kDrawn{.sampling = {.num_tokens = 40, .temperature = 0.9, .seed = 5}};

TEST_F(GenerationTest, AnswersPromptsInTheirOrderWithTheTextsOfEachAloneOnAnyNumberOfRanks) {
  const Strings prompts = {"the ", "cat", "sat. the 3", "t", "the 1 cat s"};
  Strings alone;
  for (const std::string& prompt : prompts) alone.push_back(texts(model(), {prompt}, kDrawn)[0]);
  for (const std::int64_t ranks : {1, 2, 3}) EXPECT_EQ(texts(model(ranks), prompts, kDrawn), alone);
}

TEST_F(GenerationTest, HasAllParametersInPlaceOnOneRankThoughItsRunWasSharded) {
  TextModel text(model(1));
  text.run(kContext, [](const sharding::Rank&, Decoder&) {}, {});
  EXPECT_FALSE(text.ranks_work_together());
}

TEST_F(GenerationTest, KeepsParametersShardedWhereNoRankHasRoomForAllAndSaysSo) {
  Strings notes, given;
  const auto fits = [&](std::int64_t bytes) {
    notes.clear();
    const std::string refused = test::error_text<UsageError>([&] {
      given = texts(model(2, {fmt::format("memory.device_memory={}B", bytes)}), {"the ", "cat"},
                    kDrawn, &notes);
    });
    if (refused == "(no error)") return true;
    EXPECT_NE(refused.find("using it on 2 ranks needs"), std::string::npos) << refused;
    return false;
  };
  std::int64_t too_small = 0, enough = 64 << 20;
  ASSERT_TRUE(fits(enough));
  EXPECT_EQ(notes, Strings());
  while (enough - too_small > 1024) {
    const std::int64_t middle = (too_small + enough) / 2;
    (fits(middle) ? enough : too_small) = middle;
  }
  ASSERT_TRUE(fits(enough)) << "the smallest machine that it fits";
  EXPECT_EQ(given, texts(model(), {"the ", "cat"}, kDrawn));
  EXPECT_EQ(notes, Strings{"no rank has room for all parameters, so 2 ranks gather each unit for "
                           "each token, which is slow."});
}

TEST_F(GenerationTest, EndsInFrontOfAStopStringWhichCountsAsTokens) {
  GenerationOptions options = kDrawn;
  options.sampling.temperature = 0.0;
  const std::string whole = texts(model(), {"the "}, options)[0];
  ASSERT_EQ(whole.size(), 40u);
  const std::string stop = whole.substr(17, 2);
  options.stops = {"never", stop};
  GenerationRequest request{.model = model(), .options = options, .prompts = {"the "}};
  GeneratedText result;
  std::string streamed;
  request.on_text = [&](std::string_view piece) { streamed += piece; };
  request.on_end = [&](std::size_t, const GeneratedText& text) { result = text; };
  generate(request);
  EXPECT_EQ(result.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.end, GeneratedText::End::kStop);
  EXPECT_EQ(result.num_tokens, static_cast<std::int64_t>(whole.find(stop) + 2));
}

TEST_F(GenerationTest, RefusesAPromptWithCharactersThatTheModelNeverSaw) {
  EXPECT_NE(test::error_text<UsageError>([] {
              texts(model(), {"the", "Z"}, kDrawn);
            }).find("\"Z\""),
            std::string::npos);
}

TEST_F(GenerationTest, ScoresAContinuationAsThePartsOfWhichItConsists) {
  const double whole = log_likelihood({{"context", "the 3 c"}, {"continuation", "at."}});
  double parts = 0.0;
  for (const auto& [context, next] :
       {std::pair("the 3 c", "a"), std::pair("the 3 ca", "t"), std::pair("the 3 cat", ".")}) {
    parts += log_likelihood({{"context", context}, {"continuation", next}});
  }
  EXPECT_NEAR(whole, parts, 1e-9);
  EXPECT_LT(whole, 0.0);
}

// Spaces at a context's end belong to what follows, as lm-evaluation-harness has it.
TEST_F(GenerationTest, CountsSpacesAtTheEndOfAContextToTheContinuation) {
  EXPECT_EQ(log_likelihood({{"context", "the 3 "}, {"continuation", "cat"}}),
            log_likelihood({{"context", "the 3"}, {"continuation", " cat"}}));
}

// Another way to the same number: the loss that `sherd eval` computes with its own kernels.
TEST_F(GenerationTest, ScoresWhatAnEvaluationOfTheSameTokensGives) {
  const std::string text = "the 5 cat sat. the 6 cat ";  // a token more than the context
  folder_->write("one.txt", text);
  const EvaluationResult evaluation =
      evaluate_checkpoint(model(1, {"data.validation_path=" + folder_->file("one.txt")}));
  ASSERT_EQ(evaluation.num_tokens, kContext);
  const double score = log_likelihood({{"context", "t"}, {"continuation", text.substr(1)}});
  EXPECT_NEAR(-score / kContext, evaluation.loss, 1e-6);
}

TEST_F(GenerationTest, SaysWhetherEachTokenWasTheLikeliest) {
  GenerationOptions greedy{.sampling = {.num_tokens = 6, .temperature = 0.0}};
  const std::string text = texts(model(), {"the "}, greedy)[0];
  const auto right = answers({Json{{"context", "the"}, {"continuation", " " + text}}.dump()});
  EXPECT_TRUE(right.at(0).at("is_greedy"));
  const auto wrong =
      answers({Json{{"context", "the"}, {"continuation", " " + text + "...."}}.dump()});
  EXPECT_FALSE(wrong.at(0).at("is_greedy"));
}

// Token by token: the first 24 follow the tokens before them; the others see the last 24.
TEST_F(GenerationTest, ScoresALongTextInWindowsThatAreFullButForTheFirst) {
  const std::string text = "the 0 cat sat. the 1 cat sat. the 2 cat sat. the";
  const auto ids_of = [&](std::size_t begin, std::size_t end) {
    // The characters of text.txt in their order.
    const std::string alphabet = " .0123456acehst";
    Json ids = Json::array();
    for (const char c : text.substr(begin, end - begin)) ids.push_back(alphabet.find(c));
    return ids;
  };
  const std::size_t n = text.size();
  ASSERT_EQ(n, 48u);
  const auto part = [&](std::size_t context, std::size_t begin, std::size_t end) {
    return log_likelihood({{"context", context == begin ? Json::array() : ids_of(context, begin)},
                           {"continuation", ids_of(begin, end)}});
  };
  EXPECT_NEAR(log_likelihood({{"text", text}}), part(0, 0, 24) + part(23, 24, 48), 1e-9);
  // 30 tokens: the second window begins earlier, to be full.
  const Json thirty = answers({Json{{"text", text.substr(0, 30)}}.dump()}).at(0);
  EXPECT_NEAR(thirty.at("log_likelihood"), part(0, 0, 24) + part(5, 24, 30), 1e-9);
  EXPECT_EQ(thirty.at("tokens"), 30);
  EXPECT_EQ(thirty.at("bytes"), 30);
}

TEST_F(GenerationTest, AnswersQuestionsOfAllKindsInTheirOrderOnAnyNumberOfRanks) {
  const Strings questions = {
      R"({"text": "the 1 cat sat."})",
      R"({"context": "the", "continuation": " 2"})",
      "",
      R"({"prompt": "the ", "max_tokens": 10, "until": ["."]})",
      R"({"prompt": "cat", "max_tokens": 12, "temperature": 0.7, "seed": 3})",
      R"({"context": "", "continuation": "the 2 cat"})"};
  const std::vector<Json> expected = answers(questions);
  ASSERT_EQ(expected.size(), 5u);
  EXPECT_EQ(expected[2].at("text").get<std::string>().find('.'), std::string::npos);
  for (const std::int64_t ranks : {2, 3}) EXPECT_EQ(answers(questions, ranks), expected);
}

// Without max_tokens, half of the context is the prompt's.
TEST_F(GenerationTest, KeepsAPromptThatFits) {
  const GenerationOptions greedy{.sampling = {.num_tokens = kContext / 2, .temperature = 0.0},
                                 .for_terminal = false};
  const std::string prompt = "the 1 cat s";
  EXPECT_EQ(answers({Json{{"prompt", prompt}}.dump()}).at(0).at("text"),
            texts(model(), {prompt}, greedy)[0]);
}

TEST_F(GenerationTest, NamesTheLineOfAQuestionThatIsNone) {
  for (const auto& [line, what] :
       {std::pair("[1]", "a question is a JSON object."), std::pair("{", "a question is a JSON"),
        std::pair(
            "{}",
            "expected \"context\" and \"continuation\", \"text\", \"prompt\", or \"messages\"."),
        std::pair(R"({"context": "the", "continuation": ""})", "has no tokens of its own"),
        std::pair(R"({"context": 3, "continuation": "a"})", "\"context\" isn't a text"),
        std::pair(R"({"text": [1, 15]})", "\"text\" has 15, which isn't a token from 0 to 14"),
        std::pair(R"({"prompt": "t", "max_tokens": 0})", "\"max_tokens\" isn't a number from 1"),
        std::pair(R"({"prompt": "t", "max_tokens": 24})",
                  "\"max_tokens\" is 24, and the context has 24 tokens: nothing of the prompt"),
        std::pair(R"({"prompt": "t", "until": [1]})", "\"until\" isn't a list of texts")}) {
    const std::string error = test::error_text<DataError>([&, line = line] {
      answers({"", R"({"text": "t"})", line});
    });
    EXPECT_TRUE(error.starts_with("questions.jsonl:3: ")) << error;
    EXPECT_NE(error.find(what), std::string::npos) << error;
  }
}

// After the first byte of a character, a terminal would see \xc3.
TEST(Generation, AStopIsLookedForInTheTextAndNotInEscapes) {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "\u00e9 ";
  folder.write("text.txt", text);
  std::string recipe = fmt::format(kRecipe, folder.path(), kContext);
  recipe.replace(recipe.find("vocab_size: 15"), 14, "vocab_size: 256");
  recipe.replace(recipe.find("chars"), 5, "bytes");
  train(resolve_recipe({.path = "bytes.yaml", .text = recipe, .sets = {}, .ranks = {}}));
  GenerationRequest request{
      .model = {.checkpoint = folder.file("run"), .sets = {}, .ranks = 1},
      .options = {.sampling = {.num_tokens = 12, .temperature = 0.0}, .stops = {"x", "3"}},
      .prompts = {"\u00e9 \u00e9"}};
  request.model.checkpoint = folder.file("run/checkpoints/" + checkpoint::step_directory_name(40));
  request.on_end = [](std::size_t, const GeneratedText& result) {
    EXPECT_EQ(result.text, " \u00e9 \u00e9 \u00e9 \u00e9");
    EXPECT_EQ(result.end, GeneratedText::End::kLength);
  };
  generate(request);
}

}  // namespace
}  // namespace sherd::engine
