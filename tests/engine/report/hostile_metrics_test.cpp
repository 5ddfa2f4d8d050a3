// Lines of metrics.jsonl that no program of ours wrote: they end nothing, and take little memory. And
// names that aren't UTF-8.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/report/metrics.h"
#include "engine/report/run_history.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

std::string nested(const std::string& before, const std::string& after) {
  constexpr std::size_t kDeep = 100'000;
  return before + std::string(kDeep, '[') + std::string(kDeep, ']') + after + "\n";
}

TEST(KeepMetrics, LinesOfDeeplyNestedValuesAreNoneOfOurs) {
  const test::TempFolder folder;
  const std::string own = "{\"step\":0,\"loss\":2.5}\n";
  const std::string path =
      folder.write("metrics.jsonl", nested("{\"metrics_version\":", "}") + own +
                                        nested("{\"step\":0,\"loss\":1,\"x\":", "}"));
  keep_metrics_of(path, 2);
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"metrics_version\":2}\n{\"step\":1,\"loss\":2.5}\n");
}

TEST(RunHistory, HasNoLinesOfDeeplyNestedValues) {
  const RunHistory history = parse_history(
      nested("{\"metrics_version\":", "}") + "{\"step\":0,\"loss\":2.5,\"tokens_per_s\":8}\n" +
          nested("{\"step\":1,\"tokens_per_s\":8,\"loss\":", "}"),
      "metrics.jsonl");
  EXPECT_EQ(history.loss, (Curve{{1, 2.5}}));
}

TEST(RunHistory, ShowsTheBeginningOfAVersionThatItDoesntKnow) {
  const std::string text = "{\"metrics_version\":\"" + std::string(500'000, 'x') + "\"}\n";
  const std::string error =
      test::error_text<DataError>([&] { parse_history(text, "metrics.jsonl"); });
  EXPECT_NE(error.find("has metrics of version \"xxx"), std::string::npos);
  EXPECT_LT(error.size(), 500u);
}

// A source's name is its path if it has none of its own.
TEST(HostileMetrics, NamesThatAreNotUTF8AreShownAsFarAsTheyAre) {
  EvaluationMetrics metrics;
  metrics.sets = {{"caf\xe9", 1.5}};
  EXPECT_NE(to_json(metrics).find("\"val_loss/caf\ufffd\":1.5"), std::string::npos)
      << to_json(metrics);
}

}  // namespace
}  // namespace sherd::engine
