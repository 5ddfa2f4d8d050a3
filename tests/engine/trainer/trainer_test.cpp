// A training as an object, and several of them in one process.
#include "engine/trainer/trainer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "engine/run/prepare.h"
#include "engine/run/run.h"
#include "tests/engine/trainer/process_state.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using engine::PreparedRun;
using engine::StopRequest;
using engine::Trainer;
using engine::TrainerOptions;

/// What a training computes. Compared with ==: every bit counts.
struct Computed {
  std::vector<double> losses, validation_losses;
  std::vector<std::string> digests;  ///< of all tensors in its last checkpoint
  std::vector<std::int32_t> sampled;
  bool operator==(const Computed&) const = default;
};

PreparedRun prepared(const test::TempFolder& folder, const TrainingRun& run) {
  engine::RecipeRequest request;
  request.path = "trainer.yaml";
  request.text = recipe_text(folder, "unused", run);
  return engine::prepare(engine::resolve_recipe(request), *engine::cpu_machine(),
                         checkpoint::posix_disk());
}

engine::CheckpointOptions saving_in(const std::string& directory, std::int64_t interval) {
  fs::create_directories(directory);
  return {.directory = directory,
          .saves = true,
          .interval = interval,
          .init_from = {},
          .adapter = {},
          .fingerprint = std::make_shared<const nlohmann::json>(nlohmann::json::object()),
          .recipe = {},
          .folder = {}};
}

TrainerOptions options_of(const PreparedRun& run, const std::string& directory,
                          std::int64_t interval = kInterval) {
  return {.training = run.prepared[0].options,
          .batches = run.batches[0],
          .checkpoints = saving_in(directory, interval)};
}

/// A thread for each rank, in planned memory; `body` runs inside Rank::guard.
void on_ranks(const PreparedRun& run, const TrainerOptions& options, const BoundaryHook& hook,
              const std::function<void(const sharding::Rank&, Trainer&)>& body) {
  auto launch = engine::launch_options(run.resolved.values, engine::cpu_machine());
  launch.plan = [&](int r) { return run.prepared[0].plan.of(r); };
  launch.hook = hook;
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    Trainer trainer(options, rank);
    rank.guard([&] { body(rank, trainer); });
  });
}

std::vector<std::string> digests_of(const std::string& directory, std::int64_t step) {
  const checkpoint::Checkpoint saved(checkpoint::posix_disk(),
                                     directory + "/" + checkpoint::step_directory_name(step));
  return checkpoint::tensor_digests(saved);
}

/// kSteps steps with an evaluation and a save in between, and a text at the end.
Computed train(const PreparedRun& run, const std::string& directory, const BoundaryHook& hook = {},
               const std::function<void()>& after_step = {}) {
  Computed computed;
  on_ranks(run, options_of(run, directory), hook,
           [&](const sharding::Rank& rank, Trainer& trainer) {
             trainer.load();
             while (trainer.steps_done() < kSteps) {
               const double loss = trainer.step().loss;
               if (rank.rank == 0) computed.losses.push_back(loss);
               if (trainer.steps_done() % kInterval == 0) {
                 const double validation_loss = trainer.evaluate().loss;
                 if (rank.rank == 0) computed.validation_losses.push_back(validation_loss);
               }
               trainer.save_if_due();
               if (rank.rank == 0 && after_step) after_step();
             }
             trainer.finish();
             const auto tokens = trainer.sample({1, 2, 3}, {.num_tokens = 5, .seed = 7});
             if (rank.rank == 0) computed.sampled = tokens;
           });
  computed.digests = digests_of(directory, kSteps);
  return computed;
}

/// Two models that have little in common.
const TrainingRun kGpt{.stage = 3,
                       .world = 2,
                       .precision = "mixed_precision: {param_dtype: f32}",
                       .optimizer = "adamw",
                       .accumulation = "micro_batch_size: 3",
                       .model =
                           ", norm: layernorm, positions: learned, activation: gelu, "
                           "bias: true, tie_embeddings: true"};
const TrainingRun kLlama{.stage = 1,
                         .world = 3,
                         .precision = "mixed_precision: {param_dtype: bf16}",
                         .optimizer = "muon",
                         .accumulation = "gradient_accumulation_steps: 2",
                         .model = ", norm: rmsnorm, positions: rope, activation: swiglu",
                         .seq_length = 7,
                         .dropout = 0.0};

TEST(Trainer, HasTheBitsOfARunOfTheProgram) {
  const test::TempFolder folder;
  write_data(folder);
  train_in(folder, "run", kGpt);
  const PreparedRun run = prepared(folder, kGpt);
  const Computed computed = train(run, folder.file("trainer"));
  std::vector<std::string> losses;
  for (const std::string& line : numbers_of(folder, "run")) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("loss")) losses.push_back(json.at("loss").dump());
  }
  std::vector<std::string> own;
  for (const double loss : computed.losses) own.push_back(nlohmann::json(loss).dump());
  EXPECT_EQ(own, losses);
  EXPECT_EQ(computed.digests, digests_of(folder.file("run/checkpoints"), kSteps));
}

// At each step the one waits for the other, so they are under way together from the first to the last.
void expect_bits_side_by_side(std::uint64_t delay_seed) {
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun first = prepared(folder, kGpt), second = prepared(folder, kLlama);
  const Computed first_alone = train(first, folder.file("first_alone"));
  const Computed second_alone = train(second, folder.file("second_alone"));
  ASSERT_NE(first_alone.losses, second_alone.losses);
  std::barrier both(2);
  const auto meet = [&] { both.arrive_and_wait(); };
  Computed first_beside, second_beside;
  std::thread other(
      [&] { second_beside = train(second, folder.file("second"), delays(delay_seed + 1), meet); });
  first_beside = train(first, folder.file("first"), delays(delay_seed), meet);
  other.join();
  EXPECT_EQ(first_beside, first_alone);
  EXPECT_EQ(second_beside, second_alone);
}

TEST(TrainerSmall, TwoDifferentModelsSideBySideHaveTheBitsThatEachHasAlone) {
  expect_bits_side_by_side(1);
}

TEST(TrainerSlow, TwoSideBySideHaveTheirBitsUnderManyDelays) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) expect_bits_side_by_side(10 * seed);
}

TEST(Trainer, OneThatFailsLeavesTheOtherAlone) {
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun failing = prepared(folder, kGpt), other = prepared(folder, kLlama);
  const Computed alone = train(other, folder.file("alone"));
  std::string error;
  Computed beside;
  std::thread thread([&] { beside = train(other, folder.file("beside")); });
  error = test::error_text<TrainingError>([&] {
    on_ranks(failing, options_of(failing, folder.file("failing")), {},
             [](const sharding::Rank& rank, Trainer& trainer) {
               trainer.load();
               for (int step = 0; step < kSteps; ++step) {
                 trainer.step();
                 if (rank.rank == 1 && step == 2) throw TrainingError("one rank has enough");
               }
             });
  });
  thread.join();
  EXPECT_EQ(error, "one rank has enough");
  EXPECT_EQ(beside, alone);
}

TEST(Trainer, GoesOnFromWhatAnotherSavedOnOtherRanks) {
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun run = prepared(folder, kGpt);
  const Computed whole = train(run, folder.file("whole"));
  const std::string directory = folder.file("halves");
  on_ranks(run, options_of(run, directory), {}, [](const sharding::Rank&, Trainer& trainer) {
    trainer.load();
    while (trainer.steps_done() < kInterval) trainer.step();
    trainer.evaluate();
    trainer.save();
    EXPECT_EQ(trainer.newest_checkpoint(), kInterval);
  });
  TrainingRun changed = kGpt;
  changed.stage = 2;
  changed.world = 4;
  const PreparedRun other = prepared(folder, changed);
  std::vector<double> losses;
  on_ranks(other, options_of(other, directory), {},
           [&](const sharding::Rank& rank, Trainer& trainer) {
             trainer.load();
             EXPECT_EQ(trainer.steps_done(), kInterval);
             EXPECT_TRUE(trainer.evaluated());
             EXPECT_EQ(trainer.best().loss, whole.validation_losses[0]);
             while (trainer.steps_done() < kSteps) {
               const double loss = trainer.step().loss;
               if (rank.rank == 0) losses.push_back(loss);
             }
             EXPECT_FALSE(trainer.evaluated());
             trainer.save();
           });
  EXPECT_EQ(losses, std::vector(whole.losses.begin() + kInterval, whole.losses.end()));
  EXPECT_EQ(digests_of(directory, kSteps), whole.digests);
}

TEST(Trainer, SaveReturnsWhenTheCheckpointIsThereAndMayBeAskedTwice) {
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun run = prepared(folder, kGpt);
  const std::string directory = folder.file("saves");
  std::atomic<int> saved = 0;
  TrainerOptions options = options_of(run, directory, /*interval=*/2);
  options.on_save.on_saved = [&](const engine::SaveMetrics&) { ++saved; };
  on_ranks(run, options, {}, [&](const sharding::Rank& rank, Trainer& trainer) {
    trainer.load();
    trainer.step();
    trainer.save();
    if (rank.rank == 0) {
      EXPECT_EQ(checkpoint::committed_steps(checkpoint::posix_disk(), directory),
                std::vector<std::int64_t>{1});
    }
    trainer.save();
    trainer.step();
    trainer.save_if_due();  // begins to write
    trainer.save();         // the same one, to its end
    EXPECT_EQ(trainer.newest_checkpoint(), 2);
    trainer.finish();
  });
  EXPECT_EQ(saved, 2);
}

TEST(Trainer, EndsAnEvaluationThatItsOwnerGivesUpAndKeepsNothingOfIt) {
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun run = prepared(folder, kGpt);
  std::atomic<bool> asks = false;
  TrainerOptions options = options_of(run, folder.file("asked"));
  options.asked_to_stop = [&] { return asks ? StopRequest::kInterrupt : StopRequest::kNone; };
  on_ranks(run, options, {}, [&](const sharding::Rank&, Trainer& trainer) {
    trainer.load();
    EXPECT_EQ(trainer.step().stop, StopRequest::kNone);
    const double loss = trainer.evaluate().loss;
    asks = true;
    EXPECT_EQ(trainer.step().stop, StopRequest::kInterrupt);
    EXPECT_EQ(trainer.evaluate().stop, StopRequest::kInterrupt);
    EXPECT_FALSE(trainer.evaluated());
    EXPECT_EQ(trainer.best().loss, loss);
    EXPECT_EQ(trainer.best().step, 1);
  });
}

TEST(Trainer, LeavesSignalsOutputEnvironmentAndFoldersOfTheProcessAlone) {
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun run = prepared(folder, kGpt);
  const ProcessState before = process_state();
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  train(run, folder.file("silent"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(process_state(), before);
}

// Exits with 0 if the save fails and says why.
[[noreturn]] void save_beyond_the_limit(const PreparedRun& run, const std::string& directory) {
  const rlimit limit{4096, 4096};
  SHERD_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string error = test::error_text<Error>([&] {
    on_ranks(run, options_of(run, directory), {}, [](const sharding::Rank&, Trainer& trainer) {
      trainer.load();
      trainer.step();
      trainer.save();
    });
  });
  std::exit(error.find("File too large") != std::string::npos ? 0 : 1);
}

// Without a handler the signal would kill the process.
TEST(TrainerDeathTest, ASaveBeyondTheLimitOnFileSizesIsAnErrorOfTheSave) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TempFolder folder;
  write_data(folder);
  const PreparedRun run = prepared(folder, kGpt);
  EXPECT_EXIT(save_beyond_the_limit(run, folder.file("limited")), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::testing
