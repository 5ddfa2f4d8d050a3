// Runs that go back to a checkpoint after bad steps, and skip data.
#include <cmath>
#include <filesystem>

#include "checkpoint/store/output_lock.h"
#include "core/error.h"
#include "engine/run/rewind.h"
#include "tests/engine/run/mixed_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

// With a rate of 0 the loss of a step is a function of its data alone. With rare checkpoints a run
// goes back to the same one several times.
TEST_F(MixedRun, GoesBackAfterBadStepsAndSkipsTheirData) {
  const std::string plain =
      fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt"));
  const auto text = [&](const std::string& output, int max_steps, int interval,
                        const std::string& bad) {
    std::string recipe =
        recipe_text(output, plain, fmt::format("max_steps: {}", max_steps),
                    fmt::format("checkpoint: {{interval: {}, keep_last: 10}}\n", interval));
    recipe.replace(recipe.find("lr: 0.01"), 8, "lr: 0");
    return recipe.replace(recipe.find("sigma: 2, window: 16"), 20, bad);
  };
  train(text("plain", 90, 100, "max_loss: 1000"));
  std::vector<double> data;  // the losses of its steps
  for (const json& step : steps_of("plain")) data.push_back(step[1]);
  // Steps of data are bad above a limit that none of the first ten reaches.
  const double limit = *std::max_element(data.begin(), data.begin() + 10);
  const std::string bad = fmt::format(
      "max_loss: {:.17g}, rewind_after: 1, rewind_steps: 2, "
      "max_rewinds: 30",
      limit);
  for (const int interval : {1, 8}) {
    // What the run has to do: the steps of data that its steps use, none of them twice.
    std::vector<std::size_t> used;
    std::size_t next = 0, rewinds = 0, again = 0, last_back = 0;
    while (used.size() < 24) {
      used.push_back(next++);
      if (data.at(used.back()) <= limit || used.size() == 24) continue;
      const std::size_t back = (used.size() - 3) / interval * interval;  // two steps before
      used.resize(back);
      again += rewinds > 0 && back == last_back ? 1 : 0;
      last_back = back;
      ++rewinds;
    }
    ASSERT_GT(rewinds, 1u);
    ASSERT_EQ(again > 0, interval == 8);
    const std::string name = fmt::format("every{}", interval);
    const std::string said = train(text(name, 24, interval, bad));
    EXPECT_NE(said.find(" were bad: back to step "), std::string::npos) << said;
    const std::vector<json> whole = steps_of(name);
    ASSERT_EQ(whole.size(), 24u);
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(whole[i][1], data[used[i]]) << i;
  }
  for (int step = 1; step <= 24; ++step) train(text("cut", step, 1, bad), 1 + step % 3);
  EXPECT_EQ(steps_of("cut"), steps_of("every1")) << "stopped after every step";
  EXPECT_EQ(digests("cut", 24), digests("every1", 24));
}

// What a run of 16 steps with two shapes has to do that goes back, after each step whose norm is above
// `limit`, to the step that is two before it. The first shape has `first` steps, and each shape skips
// the data of its own steps.
struct Course {
  std::vector<double> norms;
  std::size_t rewinds = 0, over_the_border = 0;
};
Course course(const std::vector<double>& of_first, const std::vector<double>& of_second,
              std::size_t first, double limit) {
  constexpr std::size_t kSteps = 16, kMostRewinds = 12;
  Course found;
  std::size_t first_skip = 0, second_skip = 0;
  while (found.norms.size() < kSteps && found.rewinds < kMostRewinds) {
    const std::size_t step = found.norms.size(), done = step + 1;
    found.norms.push_back(step < first ? of_first.at(step + first_skip)
                                       : of_second.at(step - first + second_skip));
    if (found.norms.back() <= limit || done == kSteps) continue;
    if (done < 3) return {};  // nothing to go back to
    const std::size_t back = done - 3;
    found.norms.resize(back);
    if (back < first) first_skip += std::min(done, first) - back;
    if (done > first) second_skip += done - std::max(back, first);
    ++found.rewinds;
    found.over_the_border += back < first && done > first ? 1 : 0;
  }
  return found.norms.size() == kSteps ? found : Course{};
}

// With a rate of 0, the gradient's norm says which data a step is of.
TEST_F(MixedRun, GoesBackOverTheBorderOfTwoShapes) {
  const auto text = [&](const std::string& output, int num_first, int max_steps,
                        const std::string& bad) {
    std::string recipe = recipe_text(
        output,
        fmt::format("path: {}, validation_fraction: 0, stages: [{{steps: {}, "
                    "seq_length: 16}}, {{seq_length: 4}}]",
                    folder_.file("english.txt"), num_first),
        fmt::format("max_steps: {}", max_steps), "checkpoint: {interval: 1, keep_last: 20}\n");
    recipe.replace(recipe.find("lr: 0.01"), 8, "lr: 0");
    return recipe.replace(recipe.find("sigma: 2, window: 16"), 20, bad);
  };
  std::vector<double> of_first, of_second;
  train(text("first", 90, 90, "max_grad_norm: 1000"));
  train(text("second", 6, 96, "max_grad_norm: 1000"));
  for (const json& step : steps_of("first")) of_first.push_back(step[2]);
  for (const json& step : steps_of("second")) of_second.push_back(step[2]);
  of_second.erase(of_second.begin(), of_second.begin() + 6);
  // A border and a limit with which the run goes back over the border more than once.
  Course expected;
  double limit = 0.0;
  int first = 3;
  for (; first < 12; ++first) {
    for (const double norm : of_second) {
      limit = std::nextafter(norm, 0.0);
      expected = course(of_first, of_second, static_cast<std::size_t>(first), limit);
      if (expected.over_the_border > 1) break;
    }
    if (expected.over_the_border > 1) break;
  }
  ASSERT_GT(expected.over_the_border, 1u) << "needs other data";
  const std::string bad = fmt::format(
      "max_grad_norm: {:.17g}, rewind_after: 1, rewind_steps: 2, max_rewinds: 12", limit);
  train(text("whole", first, 16, bad));
  const std::vector<json> whole = steps_of("whole");
  ASSERT_EQ(whole.size(), 16u);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(whole[i][2], expected.norms[i]) << i;
  EXPECT_EQ(lines_of("whole", "rewound_from").size(), expected.rewinds);
  for (int step = 1; step <= 16; ++step) train(text("cut", first, step, bad), 1 + step % 3);
  EXPECT_EQ(steps_of("cut"), whole) << "stopped after every step";
  EXPECT_EQ(digests("cut", 16), digests("whole", 16));
  // Ended inside the first shape, after it went back there: skips of the second are still to come.
  for (int step = first; step <= 16; ++step) std::filesystem::remove_all(saved("whole", step));
  train(text("whole", first, 16, bad), 2);
  EXPECT_EQ(steps_of("whole"), whole);
  EXPECT_EQ(digests("whole", 16), digests("cut", 16));
}

// What is damaged is never chosen by its manifest, and nothing later is removed before it is read.
TEST_F(MixedRun, GoesBackToACheckpointThatOpensAndKeepsLaterOnesUntilItIsRead) {
  const auto text = [&](const std::string& output, int max_steps, const std::string& bad) {
    std::string recipe = recipe_text(
        output, fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt")),
        fmt::format("max_steps: {}", max_steps), "checkpoint: {interval: 1, keep_last: 20}\n");
    return recipe.replace(recipe.find("sigma: 2, window: 16"), 20, bad);
  };
  const std::string bad = "max_grad_norm: 1e-9, rewind_after: 2, rewind_steps: 1, max_rewinds: 1";
  for (const std::string damaged : {"manifest.json", "shard-00000-of-00001.h5"}) {
    train(text(damaged, 5, "max_grad_norm: 1000"));
    const std::string file = damaged + "/checkpoints/step-0000000004/" + damaged;
    std::string bytes = folder_.read(file);
    for (std::size_t i = bytes.size() / 4; i < bytes.size(); i += 16) bytes[i] ^= 1;
    folder_.write(file, bytes);
    const std::string error = test::error_text<Error>([&] { train(text(damaged, 9, bad)); });
    const bool opens = damaged != "manifest.json";
    EXPECT_NE(error.find(opens ? damaged : "bad_steps.max_rewinds"), std::string::npos) << error;
    EXPECT_EQ(std::filesystem::exists(saved(damaged, 5)), opens);
    EXPECT_TRUE(std::filesystem::exists(saved(damaged, 3)));
  }
}

// Steps that aren't applied are saved too. Their checkpoints don't push out the one before them.
TEST_F(MixedRun, KeepsTheCheckpointThatItMayGoBackTo) {
  const auto text = [&](int max_steps, const std::string& bad) {
    std::string recipe = recipe_text(
        "run", fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt")),
        fmt::format("max_steps: {}", max_steps), "checkpoint: {interval: 1, keep_last: 2}\n");
    return recipe.replace(recipe.find("sigma: 2, window: 16"), 20, bad);
  };
  train(text(5, "max_grad_norm: 1000"));
  const std::string error = test::error_text<Error>(
      [&] { train(text(12, "max_grad_norm: 1e-9, rewind_after: 3, max_rewinds: 1")); });
  EXPECT_NE(error.find("step 8: 3 bad steps in a row, and the run has gone back 1 times already"),
            std::string::npos)
      << error;
  EXPECT_TRUE(std::filesystem::exists(saved("run", 5)));
}

TEST_F(MixedRun, GoesBackToTheSameStepAgainThoughLaterCheckpointsAreRead) {
  namespace fs = std::filesystem;
  checkpoint::Disk& disk = checkpoint::posix_disk();
  train(recipe_text("run",
                    fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt")),
                    "max_steps: 3", "checkpoint: {interval: 1, keep_last: 20}\n"));
  const std::string directory = folder_.file("run/checkpoints"), third = saved("run", 3);
  fs::copy(third, folder_.file("third"), fs::copy_options::recursive);
  const auto num_kept = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(directory)) {
      count += entry.path().filename().string().starts_with("damaged-") ? 1 : 0;
    }
    return count;
  };
  for (int time = 1; time <= 2; ++time) {
    const checkpoint::Checkpoint reader(disk, third);
    ASSERT_TRUE(reader.hold());
    engine::remove_later_checkpoints(directory, 1, disk, nullptr);
    EXPECT_EQ(checkpoint::committed_steps(disk, directory), std::vector<std::int64_t>{1});
    EXPECT_EQ(num_kept(), time);
    fs::copy(folder_.file("third"), third, fs::copy_options::recursive);
  }
  const checkpoint::OutputLock lock(disk, folder_.file("run"));
  fs::remove(folder_.file("run/.lock"));
  EXPECT_THROW(engine::remove_later_checkpoints(directory, 1, disk, &lock), checkpoint::LockLost);
  EXPECT_TRUE(fs::exists(third)) << "another run has the folder";
}

TEST_F(MixedRun, EndsWhenItWouldGoBackOnceTooOften) {
  const std::string plain =
      fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt"));
  const auto text = [&](int interval) {
    std::string recipe = recipe_text(fmt::format("run{}", interval), plain, "max_steps: 30",
                                     fmt::format("checkpoint: {{interval: {}}}\n", interval));
    return recipe.replace(recipe.find("sigma: 2, window: 16"), 20,
                          "max_grad_norm: 1e-9, rewind_after: 2, max_rewinds: 2");
  };
  const std::string error = test::error_text<Error>([&] { train(text(1)); });
  EXPECT_NE(error.find("steps 1 to 2 were bad, and "), std::string::npos) << error;
  EXPECT_NE(error.find("has no checkpoint of step 0 or before to go back to"), std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
