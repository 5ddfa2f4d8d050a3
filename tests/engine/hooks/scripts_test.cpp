// The scripts in recipes/hooks, against stand-ins for the packages that they need (stubs/).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/hooks/command.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class HookScripts : public ::testing::Test {
 protected:
  CommandEnd run(const std::string& text, std::vector<std::string> more = {}) const {
    std::vector<std::string> environment = {"PATH=/usr/bin:/bin",
                                            "PYTHONDONTWRITEBYTECODE=1",
                                            "PYTHONPATH=" SHERD_SOURCE_DIR
                                            "/tests/engine/hooks/stubs",
                                            "STUB_CALLS=" + folder_.file("calls"),
                                            "SHERD_RUN=mine",
                                            "SHERD_OUTPUT_DIR=" + folder_.path()};
    environment.insert(environment.end(), more.begin(), more.end());
    return run_command(
        {.text = text, .environment = environment, .timeout = std::chrono::minutes(10)});
  }
  CommandEnd sync(const std::string& service, const std::string& event,
                  const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"SHERD_EVENT=" + event};
    all.insert(all.end(), more.begin(), more.end());
    return run(fmt::format("python3 {}/recipes/hooks/{}_sync.py", SHERD_SOURCE_DIR, service), all);
  }
  std::vector<json> calls(const std::string& kind) const {
    std::istringstream lines(folder_.read("calls"));
    std::vector<json> found;
    for (std::string line; std::getline(lines, line);) {
      json call = json::parse(line);
      if (call.at("call") == kind) found.push_back(std::move(call));
    }
    return found;
  }
  /// step -> figures of everything that was sent.
  std::vector<std::pair<int, json>> sent() const {
    std::vector<std::pair<int, json>> sent;
    for (const json& call : calls("log")) {
      const int step = call.at("step");
      if (sent.empty() || sent.back().first != step) sent.emplace_back(step, json::object());
      sent.back().second.update(call.at("figures"));
    }
    return sent;
  }
  void metrics(const std::string& lines) const {
    folder_.write("metrics.jsonl", "{\"metrics_version\":2}\n" + lines);
  }

  test::TempFolder folder_;
};

constexpr const char* kThreeSteps =
    "{\"step\":1,\"loss\":4.0,\"isa\":\"avx2\",\"peak_bytes\":{\"total\":7}}\n"
    "{\"step\":2,\"loss\":9.0}\n{\"step\":2,\"loss\":3.0}\n"
    "{\"step\":2,\"val_loss\":3.5,\"val_loss/code\":2.5}\nnot a line\n"
    "{\"step\":3,\"loss\":null,\"loss_text\":\"nan\",\"lr\":0.5}\n{\"step\":3,\"lo";

TEST_F(HookScripts, SendEachStepOnceInOrderAndKeepTheRunsIdOverStarts) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "there is no python3";
  for (const std::string service : {"wandb", "mlflow"}) {
    fs::remove(folder_.file("calls"));
    metrics(kThreeSteps);
    CommandEnd end = sync(service, "evaluation");
    ASSERT_TRUE(end.succeeded()) << end.text({});
    std::vector<std::pair<int, json>> expected = {
        {1, {{"loss", 4.0}}}, {2, {{"loss", 3.0}, {"val_loss", 3.5}, {"val_loss/code", 2.5}}}};
    EXPECT_EQ(sent(), expected) << "the last value of a step wins, and step 3 may get more";
    // The run began again after step 1, so step 2 has other values.
    metrics("{\"step\":2,\"loss\":1.0}\n{\"step\":3,\"loss\":2.5}\n");
    end = sync(service, "failure");
    ASSERT_TRUE(end.succeeded()) << end.text({});
    expected.push_back({3, {{"loss", 2.5}}});
    EXPECT_EQ(sent(), expected);
    const auto begins = calls("init");
    ASSERT_EQ(begins.size(), 2u);
    EXPECT_EQ(begins[0].at("id"), nullptr);
    EXPECT_EQ(begins[0].at("name"), "mine");
    EXPECT_EQ(begins[1].at("id"), "new1");
  }
}

TEST_F(HookScripts, AnUnfinishedSyncKeepsTheId) {
  if (run("command -v python3").code != 0) GTEST_SKIP() << "there is no python3";
  metrics(kThreeSteps);
  const CommandEnd end = sync("wandb", "end", {"STUB_FAILS_AT=1"});
  EXPECT_EQ(end.text({}), "ended with code 1: ConnectionError: the service is away");
  ASSERT_TRUE(sync("wandb", "end").succeeded());
  EXPECT_EQ(calls("init")[1].at("id"), "new1");
  EXPECT_EQ(sent().back().first, 3);
}

TEST_F(HookScripts, AnUploadIsWholeAndASecondOneReplacesIt) {
  const std::string script = SHERD_SOURCE_DIR "/recipes/hooks/upload.sh";
  folder_.write("step-0000000004/manifest.json", "one");
  const std::vector<std::string> facts = {"SHERD_CHECKPOINT=" + folder_.file("step-0000000004"),
                                          "TARGET=" + folder_.file("store/x")};
  ASSERT_TRUE(run(script, facts).succeeded());
  EXPECT_EQ(folder_.read("store/x/step-0000000004/manifest.json"), "one");
  folder_.write("step-0000000004/manifest.json", "two");
  ASSERT_TRUE(run(script, facts).succeeded());
  EXPECT_EQ(folder_.read("store/x/step-0000000004/manifest.json"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.file("store/x")), {}), 1);
  std::vector<std::string> by_command = facts;
  by_command.emplace_back("UPLOAD=echo copy");
  EXPECT_TRUE(run(script + " > " + folder_.file("said"), by_command).succeeded());
  EXPECT_EQ(folder_.read("said"),
            fmt::format("copy {} {}/step-0000000004\n", folder_.file("step-0000000004"),
                        folder_.file("store/x")));
  EXPECT_FALSE(run(script, {facts[0]}).succeeded()) << "no target";
}

}  // namespace
}  // namespace sherd::engine
