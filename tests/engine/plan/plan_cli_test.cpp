// `sherd plan` and a run's memory report from outside.

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/main/train_cli_support.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

class PlanCliTest : public TrainCliTest {
 protected:
  /// `sherd plan tiny.yaml`, whose data doesn't exist.
  test::ProgramOutcome plan(const Strings& extra = {}) const {
    Strings arguments = {"plan", folder_.file("tiny.yaml")};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    return test::run_program(SHERD_PROGRAM, arguments);
  }
  void expect_plan_refused(const Strings& extra, const Strings& parts) const {
    const test::ProgramOutcome outcome = plan(extra);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in\n" << outcome.err;
    }
  }
};

TEST_F(PlanCliTest, PrintsTablesWithoutTouchingTheData) {
  const auto outcome = plan({"--ranks", "4", "--set", "zero_optimization.stage=3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"tiny: ", "stage 3 on 4 ranks", "rank 0 of 4; all need the same\n",
                           "\nlive  ", "\narena  ", "stages on 4 ranks", "stage 3  ",
                           ", this recipe\n", "\nfits: ", "\nlargest micro-batch that fits: ",
                           "\nsmallest world that fits: 1", "sent in a step by "}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
  }
}

TEST_F(PlanCliTest, WantsNoDataPath) {
  folder_.write("bare.yaml",
                "model: {num_layers: 1, hidden_size: 32, num_attention_heads: 4, vocab_size: 64}\n"
                "training: {seq_length: 16, micro_batch_size: 2, max_steps: 1}\n");
  const auto outcome = test::run_program(SHERD_PROGRAM, {"plan", folder_.file("bare.yaml")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(test::run_program(SHERD_PROGRAM, {"train", folder_.file("bare.yaml")}).exit_code, 2);
}

TEST_F(PlanCliTest, JsonIsOneObjectAndThePageIsAFile) {
  const auto outcome =
      plan({"--json", "--device-memory", "1.5MiB", "--html", folder_.file("plan.html")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("limit").at("bytes"), 1'572'864);
  EXPECT_EQ(json.at("limit").at("origin"), "--device-memory");
  const std::string page = folder_.read("plan.html");
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
}

TEST_F(PlanCliTest, ThePapersConventionIsATableOfItsOwn) {
  const auto outcome = plan({"--paper-convention"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\n    1024"), std::string::npos) << outcome.out;
  expect_plan_refused({"--paper-convention", "--json"}, {"--paper-convention can't be combined"});
}

TEST_F(PlanCliTest, RefusesOptionsThatItWouldNotUse) {
  const std::string cluster =
      folder_.write("cluster.yaml", "machines: 1\nranks_per_machine: 1\ndevice: cpu\n");
  expect_plan_refused({"--search", "--cluster", cluster, "--exchanges"},
                      {"--search can only be combined with"});
  for (const Strings& more : {Strings{"--ranks-per-machine", "1"}, Strings{"--measure-disk"}}) {
    for (const char* table : {"--parameters", "--paper-convention", "--ledger"}) {
      Strings both = more;
      both.emplace_back(table);
      expect_plan_refused(both, {std::string(table) + " can"});
    }
  }
  expect_plan_refused({"--measure-disk"}, {"--measure-disk is for recipes with state on disk"});
  expect_plan_refused(
      {"--search", "--set", "data.stages=[{steps: 2, seq_length: 4}, {seq_length: 8}]"},
      {"--search doesn't know stages with sequence lengths"});
}

TEST_F(PlanCliTest, TheLedgerListsWhatAStepLaunchesOnGpus) {
  const auto text = plan({"--ledger"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* part :
       {"H100 SXM 80GB: about ", "H200 SXM 141GB: about ", "linear_forward", "estimate"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
  }
  const auto outcome = plan({"--ledger", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_GT(json[0].at("estimated_tokens_per_s"), 0.0);
  EXPECT_GT(json[0].at("rows").size(), 10u);
  expect_plan_refused({"--ledger", "--parameters"}, {"--ledger can only be combined"});
  expect_plan_refused({"--ledger", "--set", "parallelism.pipeline_parallel_degree=2"},
                      {"--ledger doesn't support pipelines"});
}

TEST_F(PlanCliTest, RefusesSizesThatAreNone) {
  expect_plan_refused({"--device-memory", "80"}, {"--device-memory: \"80\" has no unit", "GiB"});
  expect_plan_refused({"--device-memory", "80GX"}, {"unknown unit \"GX\""});
  expect_plan_refused({"--device-memory", "-1GiB"}, {"less than one byte"});
  expect_plan_refused({"--device-memory", ""}, {"--device-memory is empty"});
  expect_plan_refused({"--device-memory", "9999999999TiB"}, {"more bytes than 63 bits"});
  expect_plan_refused({"--set", "memory.device_memory=80"},
                      {"memory.device_memory: \"80\" has no"});
  expect_plan_refused({"--html", folder_.file("none/plan.html")}, {"--html ", "can't be written"});
}

TEST_F(PlanCliTest, RefusesShapesThatAreNone) {
  const auto set = [](const char* value) { return Strings{"--set", value}; };
  expect_plan_refused(set("model.num_layers=0"), {"model.num_layers is 0"});
  expect_plan_refused(set("model.hidden_size=-32"), {"model.hidden_size is -32"});
  expect_plan_refused(set("model.num_attention_heads=5"), {"heads don't divide"});
  expect_plan_refused(set("model.num_kv_heads=3"), {"model.num_kv_heads is 3"});
  expect_plan_refused(set("training.seq_length=0"), {"training.seq_length is 0"});
  expect_plan_refused(set("model.vocab_size=99999999999999999999"), {"model.vocab_size is 9"});
}

// Each size is in its range; their products aren't.
TEST_F(PlanCliTest, RefusesModelsAndBatchesThatOverflow) {
  const Strings widest = {
      "--set", "model.hidden_size=262144", "--set", "model.num_attention_heads=1024",
      "--set", "model.num_kv_heads=1024",  "--set", "model.ffn_hidden_size=1048576",
      "--set", "model.num_layers=10000",   "--set", "model.vocab_size=16777216"};
  Strings long_batches = widest;
  long_batches.insert(long_batches.end(), {"--set", "training.seq_length=16777216", "--set",
                                           "training.micro_batch_size=1000000", "--set",
                                           "training.global_batch_size=1000000"});
  expect_plan_refused(long_batches, {"more bytes than 64 bits can count"});
  Strings many_ranks = widest;
  many_ranks.insert(many_ranks.end(),
                    {"--ranks", "65536", "--set", "training.global_batch_size=65536"});
  expect_plan_refused(many_ranks, {"65536 ranks", "more bytes than 64 bits"});
}

TEST_F(PlanCliTest, ARunThatCannotFitEndsBeforeAnythingIsReadOrWritten) {
  const test::ProgramOutcome outcome =
      train("refused", {"--set", "memory.device_memory=300KB", "--set", "data.path=nowhere"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
  for (const char* part :
       {"sherd: stage 0 on 1 rank needs ", "; the device has 293 KiB, ", " too little. "}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in\n" << outcome.err;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.file("refused")));
}

TEST_F(PlanCliTest, ARunOnWarnGoesOn) {
  const test::ProgramOutcome outcome =
      train("warned", {"--set", "memory.device_memory=300KB", "--set", "memory.on_exceed=warn"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("warning: stage 0 on 1 rank needs "), std::string::npos);
}

TEST_F(PlanCliTest, ARunShowsTheTableBeforeAndTheComparisonAfter) {
  const Strings cut = {"--ranks", "2", "--set", "zero_optimization.stage=3"};
  const auto planned = plan({"--ranks", "2", "--set", "zero_optimization.stage=3", "--json"});
  const Json json = Json::parse(planned.out);
  const test::ProgramOutcome outcome = train("run", cut);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::size_t table = outcome.out.find("rank 0 of 2; all need the same\n"),
                    first_step = outcome.out.find("step 2/6"),
                    comparison = outcome.out.find("2 of 2 ranks as planned in every phase");
  ASSERT_NE(table, std::string::npos) << outcome.out;
  ASSERT_NE(comparison, std::string::npos) << outcome.out;
  EXPECT_LT(table, first_step);
  EXPECT_LT(first_step, comparison);
  EXPECT_EQ(outcome.out.find("this run had no"), std::string::npos) << outcome.out;

  const Json memory = Json::parse(folder_.read("run/memory.json"));
  const std::int64_t peak = json.at("plan").at("peak_bytes");
  EXPECT_EQ(memory.at("predicted").at("peak_bytes"), peak);
  EXPECT_EQ(memory.at("measured").at("peak_bytes"), peak);
  EXPECT_EQ(memory.at("measured").at("by_category"), memory.at("predicted").at("by_category"));
  for (int rank = 0; rank < 2; ++rank) {
    const Json& found = memory.at("measured").at("by_rank").at(rank);
    EXPECT_EQ(found.at("by_phase"), json.at("plan").at("by_phase")) << rank;
    EXPECT_GT(found.at("resident_bytes"), 0);
  }
  EXPECT_GT(memory.at("process").at("outside_plan_bytes"), 1 << 20);  // libraries at least
}

TEST_F(PlanCliTest, SearchPrintsLayoutsForTheClusterOfAFile) {
  folder_.write("cluster.yaml", "machines: 2\nranks_per_machine: 2\ndevice: H100\n");
  const Strings search = {"--search", "--cluster", folder_.file("cluster.yaml"), "--tokens", "1e9"};
  const auto text = plan(search);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"4 ranks, 2 on a machine", "H100 SXM 80GB", "assumed: links",
                           "the recipe as it is", "\n1. --set ", " days for 1e+09 tokens"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in\n" << text.out;
  }
  Strings as_json = search;
  as_json.emplace_back("--json");
  const Json json = Json::parse(plan(as_json).out);
  ASSERT_EQ(json.at("best").size(), 3u);
  EXPECT_GT(json.at("best")[0].at("predicted_step_s"), 0.0);
  EXPECT_LE(json.at("best")[0].at("needed_bytes"), json.at("limit_bytes"));
}

TEST_F(PlanCliTest, SearchRefusesANumberOfTokensThatIsNone) {
  for (const char* tokens : {"nan", "inf", "0", "-1"}) {
    EXPECT_EQ(plan({"--search", "--tokens", tokens}).exit_code, 2) << tokens;
  }
}

// A slow link of a server is in the time, and the cluster's ranks are workers.
TEST_F(PlanCliTest, ClusterWithoutASearchPredictsTheRecipeAsItIs) {
  const auto seconds = [&](const std::string& servers) {
    folder_.write("cluster.yaml", "machines: 1\nranks_per_machine: 2\ndevice: cpu\n" + servers);
    const auto outcome =
        plan({"--ranks", "2", "--cluster", folder_.file("cluster.yaml"), "--json", "--set",
              "parallelism.parameter_servers=1", "--set", "zero_optimization.stage=1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out).at("predicted_step_s").get<double>();
  };
  EXPECT_GT(seconds("servers: {bandwidth: 1KB}\n"), 100.0 * seconds(""));
  folder_.write("cluster.yaml", "machines: 2\nranks_per_machine: 2\ndevice: H100\n");
  const Strings four = {"--cluster", folder_.file("cluster.yaml")};
  expect_plan_refused(four, {"The cluster has 4 ranks, but the recipe has"});
  Strings served = four;
  served.insert(served.end(), {"--ranks", "2", "--set", "parallelism.parameter_servers=1", "--set",
                               "zero_optimization.stage=1"});
  expect_plan_refused(served, {"the cluster's device is H100; servers need CPUs."});
  expect_plan_refused({"--cluster", folder_.file("none.yaml")}, {"can't read the cluster file"});
}

TEST_F(PlanCliTest, OptionsOfASearchNeedOne) {
  expect_plan_refused({"--keep", "parallelism"}, {"--search: add it"});
  expect_plan_refused({"--top", "2"}, {"--search: add it"});
  expect_plan_refused({"--search", "--paper-convention"}, {"--search can only be combined"});
  expect_plan_refused({"--search", "--cluster", folder_.file("none.yaml")}, {"none.yaml"});
}

TEST_F(PlanCliTest, ASearchWritesItsPage) {
  const std::string page = folder_.file("layouts.html");
  EXPECT_EQ(plan({"--search", "--ranks", "2", "--html", page}).exit_code, 0);
  EXPECT_NE(folder_.read("layouts.html").find("Step time against memory"), std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
