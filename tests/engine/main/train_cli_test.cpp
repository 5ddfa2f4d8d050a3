// `sherd train` from outside: the files that a run leaves, and that cutting it up differently changes
// nothing.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/launch/system_info.h"
#include "engine/recipe/recipe.h"
#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;
const Strings kStage3OnTwoRanks = {"--ranks", "2", "--set", "zero_optimization.stage=3"};

std::string without_comments(const std::string& yaml) {
  std::string text;
  std::istringstream in(yaml);
  for (std::string line; std::getline(in, line);) {
    line.erase(std::min(line.find(" #"), line.size()));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

TEST_F(TrainCliTest, ARunOnTwoRanksAtStage3WritesAMetricsLineForEveryStepAndEvaluation) {
  const test::ProgramOutcome outcome = train("run", kStage3OnTwoRanks);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");

  std::vector<nlohmann::json> steps, evaluations;
  for (const nlohmann::json& line : metrics("run")) {
    if (line.contains("saved") || line.contains("goodput")) continue;
    (line.contains("loss") ? steps : evaluations).push_back(line);
  }
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
  for (int i = 0; i < kSteps; ++i) {
    const nlohmann::json& line = steps[static_cast<std::size_t>(i)];
    EXPECT_EQ(line.at("step"), i + 1) << "as on the screen";
    for (const char* key : {"grad_norm", "lr", "tokens_per_s"}) EXPECT_GT(line.at(key), 0.0) << key;
    for (const char* key : {"exposed_comm_ms", "data_wait_ms", "comm_cpu_ms"})
      EXPECT_GE(line.at(key), 0.0) << key;
    EXPECT_TRUE(line.at("slowest_rank") == 0 || line.at("slowest_rank") == 1) << line;
    EXPECT_GE(line.at("slowest_rank_ms"), line.at("median_rank_ms"));
    EXPECT_EQ(line.at("tokens"), (i + 1) * 12 * 16);
    std::int64_t categories = 0;
    for (const auto& [category, bytes] : line.at("peak_bytes").items()) {
      if (category != "total") categories += bytes.get<std::int64_t>();
    }
    EXPECT_GE(categories, line.at("peak_bytes").at("total"));
    EXPECT_GT(line.at("peak_bytes").at("total"), 0);
  }
  EXPECT_LT(steps.back().at("loss"), steps.front().at("loss"));
  EXPECT_NEAR(steps.front().at("loss").get<double>(), std::log(128.0), 0.3);

  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[0].at("step"), 3);
  EXPECT_EQ(evaluations[0].at("num_tokens"), 2 * 12 * 16);  // eval_batches 2
  EXPECT_EQ(evaluations[1].at("step"), 6);
  EXPECT_EQ(evaluations[1].at("num_tokens"), 25 * 16);  // (401 - 1) / 16 windows: the whole split
  EXPECT_TRUE(evaluations[1].contains("val_loss_20_batches"));
}

TEST_F(TrainCliTest, PrintsPlainLinesWhereOutputIsNotATerminal) {
  const test::ProgramOutcome outcome = train("run", kStage3OnTwoRanks);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos);
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  const Strings lines = lines_of(outcome.out);
  const auto starting = [&](const std::string& start) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.starts_with(start); });
  };
  for (const char* start :
       {"tiny: ", "1 file, ", "2 ranks with ", "step 2/6  loss ", "step 4/6  loss ",
        "step 6/6  loss ", "step 3: validation loss ", "step 6: validation loss ", "sample:"}) {
    EXPECT_EQ(starting(start), 1) << start << " in\n" << outcome.out;
  }
  EXPECT_NE(outcome.out.find("exposed "), std::string::npos);
  EXPECT_NE(outcome.out.find(" over 400 tokens (20-batch estimate "), std::string::npos);
  const std::string sample = outcome.out.substr(outcome.out.find("sample:\n") + 8);
  EXPECT_TRUE(sample.starts_with("the ")) << sample;
  EXPECT_GE(sample.size(), 4u + 20u);  // the prompt and 20 bytes, escaped where not printable
}

TEST_F(TrainCliTest, SavesTheRecipeThatResolvesToTheSameValues) {
  ASSERT_EQ(train("run", kStage3OnTwoRanks).exit_code, 0);
  const ResolvedRecipe asked = resolve_recipe(
      {.path = folder_.file("tiny.yaml"),
       .text = {},
       .sets = {"data.path=" + folder_.file("text.txt"), "run.output_dir=" + folder_.file("run"),
                "zero_optimization.stage=3"},
       .ranks = 2});
  const std::string saved = folder_.read("run/recipe.yaml");
  EXPECT_EQ(saved, asked.yaml());
  const ResolvedRecipe again = resolve_recipe(
      {.path = folder_.file("run/recipe.yaml"), .text = {}, .sets = {}, .ranks = {}});
  EXPECT_EQ(without_comments(again.yaml()), without_comments(saved));
}

TEST_F(TrainCliTest, EveryStageGivesTheSameBitsAndEveryNumberOfRanksTheSameLosses) {
  ASSERT_EQ(train("one").exit_code, 0);
  const std::vector<double> one = column("one", "loss");
  for (const std::string ranks : {"2", "3"}) {
    ASSERT_EQ(train("stage0", {"--ranks", ranks}).exit_code, 0);
    ASSERT_EQ(train("stage3", {"--ranks", ranks, "--set", "zero_optimization.stage=3"}).exit_code,
              0);
    for (const char* key : {"loss", "grad_norm", "val_loss", "val_loss_20_batches"}) {
      EXPECT_EQ(column("stage0", key), column("stage3", key)) << key << ", ranks " << ranks;
    }
    const std::vector<double> losses = column("stage0", "loss");
    ASSERT_EQ(losses.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(losses[i], one[i], 1e-5 * one[i]) << "step " << i << ", ranks " << ranks;
    }
  }
}

TEST_F(TrainCliTest, TracesEveryStreamOfEveryRankInTheStepsAskedFor) {
  Strings arguments = kStage3OnTwoRanks;  // of 6 steps
  arguments.insert(arguments.end(), {"--set", "metrics.trace_steps=[5, 6]"});
  const test::ProgramOutcome outcome = train("run", arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("trace of steps 5 to 6: "), std::string::npos) << outcome.out;
  std::map<int, std::set<std::string>> streams;  // by rank
  std::map<std::pair<int, int>, std::string> names;
  std::map<int, int> updates;
  const nlohmann::json trace = nlohmann::json::parse(folder_.read("run/trace.json"));
  for (const nlohmann::json& event : trace) {
    if (event.at("ph") != "M" || event.at("name") != "thread_name") continue;
    names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  }
  for (const nlohmann::json& event : trace) {
    if (event.at("ph") != "X") continue;
    streams[event.at("pid")].insert(names.at({event.at("pid"), event.at("tid")}));
    EXPECT_GE(event.at("dur"), 0.0);
    if (event.at("name") == "update") ++updates[event.at("pid")];
  }
  ASSERT_EQ(streams.size(), 2u);
  for (const auto& [rank, of_rank] : streams) {
    EXPECT_EQ(of_rank, (std::set<std::string>{"compute", "gather", "reduce"})) << "rank " << rank;
    // Rank 0 turns the trace on and off; another rank may be a little earlier or later.
    EXPECT_NEAR(updates[rank], 2, rank == 0 ? 0 : 1) << "rank " << rank;
  }
}

TEST_F(TrainCliTest, SaysInOneLineThatRanksOutnumberCores) {
  const std::string ranks = std::to_string(num_usable_cores() + 1);
  const test::ProgramOutcome outcome =
      train("run", {"--ranks", ranks, "--set", "training.global_batch_size=" + ranks, "--set",
                    "zero_optimization.stage=3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string line = ranks + " ranks with 1 compute thread each on ";
  EXPECT_NE(outcome.out.find(line), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(": more threads than cores, so ranks take turns"), std::string::npos);
  EXPECT_EQ(column("run", "loss").size(), static_cast<std::size_t>(kSteps));
}

TEST_F(TrainCliTest, CtrlCEndsTheRunAfterAStepWithItsMetricsWhole) {
  for (const Strings& cut : {Strings{}, kStage3OnTwoRanks}) {
    Strings arguments = cut;
    arguments.insert(arguments.end(),
                     {"--set", "training.max_steps=1000000", "--set", "training.eval_interval=0",
                      "--set", "metrics.log_interval=1", "--set", "checkpoint.on_interrupt=false"});
    const test::ProgramOutcome outcome =
        train("run", arguments, [](pid_t program, const std::string& line) {
          if (line.starts_with("step 3/")) ::kill(program, SIGINT);
        });
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("sherd: Ctrl-C after step ")) << outcome.err;
    const std::size_t num_steps = column("run", "loss").size();
    EXPECT_GE(num_steps, 3u);
    EXPECT_NE(outcome.err.find(fmt::format("after step {} of 1000000;", num_steps)),
              std::string::npos)
        << outcome.err << num_steps;
  }
}

TEST_F(TrainCliTest, ALossThatIsNotFiniteEndsTheRunWith5) {
  Strings arguments = kStage3OnTwoRanks;
  arguments.insert(arguments.end(),
                   {"--set", "optimizer.type=sgd", "--set", "optimizer.lr=1e35", "--set",
                    "gradient_clipping.max_norm=0", "--set", "lr_scheduler.type=constant"});
  const test::ProgramOutcome outcome = train("run", arguments);
  EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
  EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
  for (const char* part : {"sherd: step 2: loss is ", "tensor \"", "unit \"", "belongs to rank ",
                           "found it first on rank 0"}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in\n" << outcome.err;
  }
  EXPECT_EQ(metrics("run").size(), 1u) << "of step 1, so that it was step 2";
}

}  // namespace
}  // namespace sherd::engine
