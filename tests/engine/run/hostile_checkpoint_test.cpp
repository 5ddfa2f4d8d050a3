// Checkpoints made to harm: every checksum is right, their content is not. Each is refused in a
// sentence by whoever would use it, before anything is as large as it says.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/interchange/hdf5_export.h"
#include "checkpoint/store/verify.h"
#include "engine/inference/evaluate.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::posix_disk;
using nlohmann::ordered_json;
using test::error_text;
using Edit = std::function<void(ordered_json& manifest)>;

/// The last checkpoint of a small run, and altered copies of it.
class HostileCheckpoint : public ::testing::Test {
 protected:
  HostileCheckpoint() {
    write_data(folder_);
    train_in(folder_, "run", kRun);
    fs::remove_all(folder_.file(path("run", kInterval)));
  }
  static std::string path(const std::string& run, int step) {
    return run + "/checkpoints/" + checkpoint::step_directory_name(step);
  }
  /// A copy of the whole run with its manifest changed, its checksum made right again.
  std::string edited(const Edit& edit) {
    const std::string run = "edited" + std::to_string(num_edited_++);
    fs::copy(folder_.file("run"), folder_.file(run), fs::copy_options::recursive);
    const std::string manifest = path(run, kSteps) + "/manifest.json";
    ordered_json json = test::unframed(folder_.read(manifest));
    edit(json);
    folder_.write(manifest, test::framed(json));
    return run;
  }
  std::string with_counter(const char* key, const ordered_json& value) {
    return edited([&](ordered_json& manifest) { manifest["global"]["counters"][key] = value; });
  }
  /// The stored recipe with one text in place of another.
  std::string with_recipe(const std::vector<std::pair<std::string, std::string>>& changes) {
    return edited([&](ordered_json& manifest) {
      std::string recipe = manifest["global"]["recipe"];
      for (const auto& [from, to] : changes) {
        const std::size_t at = recipe.find(from);
        ASSERT_NE(at, std::string::npos) << from << " in\n" << recipe;
        recipe.replace(at, from.size(), to);
      }
      manifest["global"]["recipe"] = recipe;
    });
  }

  std::string refusal_to_resume(const std::string& run) {
    return error_text<DataError>([&] { train_in(folder_, run, kRun); });
  }
  engine::TrainedModelRequest request(const std::string& run) const {
    return {folder_.file(path(run, kSteps)), {}, {}, {}};
  }
  template <class ErrorType = DataError>
  void expect_unusable(const engine::TrainedModelRequest& request, const std::string& why) const {
    const std::string of_eval =
        error_text<ErrorType>([&] { engine::evaluate_checkpoint(request); });
    EXPECT_NE(of_eval.find(why), std::string::npos) << of_eval;
    const std::string of_sample =
        error_text<ErrorType>([&] { test::generated_text(request, "a", {.num_tokens = 1}); });
    EXPECT_NE(of_sample.find(why), std::string::npos) << of_sample;
  }

  const TrainingRun kRun{.stage = 0,
                         .world = 1,
                         .precision = "mixed_precision: {param_dtype: f32}",
                         .optimizer = "adamw",
                         .accumulation = "gradient_accumulation_steps: 1"};
  test::TempFolder folder_;
  int num_edited_ = 0;
};

TEST_F(HostileCheckpoint, TheUntouchedOneIsResumedEvaluatedAndSampled) {
  const std::string run = edited([](ordered_json&) {});
  EXPECT_EQ(refusal_to_resume(run), "(no error)");
  EXPECT_GT(engine::evaluate_checkpoint(request(run)).num_tokens, 0);
  EXPECT_EQ(test::generated_text(request(run), "a", {.num_tokens = 1})[0], 'a');
}

TEST_F(HostileCheckpoint, ARecipeThatTracedStepsCountedFrom0IsStillRead) {
  const std::string run = with_recipe({{"trace_steps: []", "trace_steps: [0, 1]"}});
  EXPECT_EQ(refusal_to_resume(run), "(no error)");
  EXPECT_GT(engine::evaluate_checkpoint(request(run)).num_tokens, 0);
}

// As after a kill between a postponed evaluation and the next save.
TEST_F(HostileCheckpoint, WhatNeverSawItsEvaluationHasItMadeAgainAndWrittenOnce) {
  const std::string run =
      edited([](ordered_json& manifest) { manifest["global"].erase("validation_loss"); });
  const std::string metrics = folder_.read(run + "/metrics.jsonl");
  ASSERT_NE(metrics.find("val_loss"), std::string::npos);
  EXPECT_EQ(refusal_to_resume(run), "(no error)");
  EXPECT_EQ(numbers_of(folder_, run), numbers_of(folder_, "run"));
}

TEST_F(HostileCheckpoint, CountersThatNoRunHasAreRefusedByName) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const std::vector<ordered_json> not_counts = {
      -1, 1.5, 1e300, largest, static_cast<std::uint64_t>(largest) + 1, "8", nullptr, true};
  for (const char* key :
       {"num_updates", "clean_steps", "credit", "skips_in_a_row", "total_skips"}) {
    for (const ordered_json& value : not_counts) {
      const std::string text = refusal_to_resume(with_counter(key, value));
      EXPECT_NE(text.find(std::string("counters.") + key + " is "), std::string::npos)
          << key << " " << value << ": " << text;
    }
  }
  for (const ordered_json& value : std::vector<ordered_json>{-1.0, 0.0, 1e300, "1", nullptr}) {
    EXPECT_NE(refusal_to_resume(with_counter("loss_scale", value)).find("counters.loss_scale is "),
              std::string::npos)
        << value;
  }
}

TEST_F(HostileCheckpoint, AValueThatIsRefusedIsShownInAFewLines) {
  const std::string text = refusal_to_resume(with_counter("credit", std::string(300'000, '\x1b')));
  EXPECT_NE(text.find("counters.credit is "), std::string::npos);
  EXPECT_LT(text.size(), 2000u);
}

TEST_F(HostileCheckpoint, SkippedDataThatNobodyCanCountIsRefused) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const auto refusal = [&](std::size_t count, std::int64_t num_steps) {
    return refusal_to_resume(edited([&](ordered_json& manifest) {
      manifest["global"]["data_skips"] =
          std::vector<std::vector<std::int64_t>>(count, std::vector<std::int64_t>{100, num_steps});
    }));
  };
  EXPECT_EQ(refusal(2, 1), "(no error)");
  for (const std::string& text : {refusal(2, kMost), refusal((std::size_t{1} << 20) + 1, 0)}) {
    EXPECT_NE(text.find("data_skips is [[100,"), std::string::npos) << text;
    EXPECT_LT(text.size(), 2000u);
  }
}

TEST_F(HostileCheckpoint, UpdatesAndSkipsAddUpToTheStep) {
  EXPECT_NE(refusal_to_resume(with_counter("num_updates", 7)).find("7 updates and 0 skips"),
            std::string::npos);
  EXPECT_NE(refusal_to_resume(with_counter("total_skips", 1)).find("8 updates and 1 skips"),
            std::string::npos);
  const auto without = [&](const Edit& edit) { return refusal_to_resume(edited(edit)); };
  EXPECT_NE(without([](ordered_json& m) { m["global"]["counters"].erase("credit"); }).find("lack"),
            std::string::npos);
  EXPECT_NE(without([](ordered_json& m) { m["global"]["counters"] = 3; }).find("lack"),
            std::string::npos);
  EXPECT_NE(without([](ordered_json& m) { m["global"].erase("counters"); }).find("lack"),
            std::string::npos);
}

TEST_F(HostileCheckpoint, ARecipeThatIsNotOfItsTensorsIsRefusedBeforeAnythingIsMade) {
  const auto expect = [&](const std::vector<std::pair<std::string, std::string>>& changes,
                          const std::string& why) {
    expect_unusable(request(with_recipe(changes)), why);
  };
  expect({{"hidden_size: 24", "hidden_size: 262144"}}, "in this run");
  expect({{"num_layers: 2", "num_layers: 10000"}}, "10000 layers, but it holds");
  expect({{"vocab_size: 128", "vocab_size: 16777216"}}, "in this run");
  expect({{"data_parallel_shard_degree: 1", "data_parallel_shard_degree: 65536"},
          {"global_batch_size: 12", "global_batch_size: 786432"}},
         "65536 ranks, but 1 wrote it");
  const std::string none = edited([](ordered_json& m) { m["global"].erase("recipe"); });
  expect_unusable(request(none), "holds no recipe");
}

TEST_F(HostileCheckpoint, MemoryIsWhatThisMachineHasAndNotWhatTheFileSays) {
  const auto huge = with_recipe({{"device_memory: \"\"", "device_memory: \"1KiB\""},
                                 {"on_exceed: abort", "on_exceed: warn"}});
  EXPECT_GT(engine::evaluate_checkpoint(request(huge)).num_tokens, 0)
      << "what the file says counts";
  engine::TrainedModelRequest tight = request(huge);
  tight.sets = {"memory.device_memory=1KiB"};
  expect_unusable<UsageError>(tight, "the device has 1.0 KiB");
}

TEST_F(HostileCheckpoint, AVocabularyHasOneCharacterPerToken) {
  const auto of = [&](const std::string& format, int count, const Edit& more = {}) {
    const std::string run = edited([&](ordered_json& manifest) {
      std::string recipe = manifest["global"]["recipe"];
      const std::string from = "format: bytes";
      recipe.replace(recipe.find(from), from.size(), "format: " + format);
      manifest["global"]["recipe"] = recipe;
      for (int i = 0; i < count; ++i) manifest["global"]["vocabulary"].push_back(i);
      if (more) more(manifest);
    });
    return request(run);
  };
  EXPECT_GT(engine::evaluate_checkpoint(of("chars", 128)).num_tokens, 0);
  expect_unusable(of("chars", 129), "129 characters; its recipe has 128");
  expect_unusable(of("chars", 0), "0 characters; its recipe has 128");
  expect_unusable(of("bytes", 1), "1 characters; its recipe has 0");
  for (const ordered_json& value :
       std::vector<ordered_json>{-1, 1.5, 0x110000, 4294967296, 5, "a", nullptr}) {
    const auto bad =
        of("chars", 128, [&](ordered_json& m) { m["global"]["vocabulary"][64] = value; });
    expect_unusable(bad, "isn't an ascending list of characters");
  }
}

// ------------------------------------------------------------------------------ values

class NotFinite : public HostileCheckpoint {
 protected:
  /// A copy of the run whose element 5 of the first piece of `kind` is `bits`, checksums right.
  std::string with_value(const std::string& kind, std::uint32_t bits) {
    return edited([&](ordered_json& manifest) {
      ordered_json& shard = manifest["shards"][0];
      const std::string name = path("edited" + std::to_string(num_edited_ - 1), kSteps) + "/" +
                               checkpoint::shard_name(0, 1);
      std::string bytes = folder_.read(name);
      for (ordered_json& dataset : shard["datasets"]) {
        if (dataset["kind"].get<std::string>() != kind) continue;
        const std::size_t offset = dataset["offset"],
                          size = std::size_t{4} * dataset["numel"].get<std::size_t>();
        std::memcpy(bytes.data() + offset + 20, &bits, 4);
        dataset["checksums"][0] = fmt::format("{:016x}", XXH3_64bits(bytes.data() + offset, size));
      }
      folder_.write(name, bytes);
    });
  }
};

constexpr std::uint32_t kNaN = 0x7fc00000u, kMinusInfinity = 0xff800000u;

TEST_F(NotFinite, AParameterIsNamedByWhoeverReadsIt) {
  for (const std::uint32_t bits : {kNaN, kMinusInfinity}) {
    const std::string run = with_value("param", bits);
    const std::string directory = folder_.file(path(run, kSteps));
    const std::string label = "/param[5, 6) isn't finite";
    EXPECT_NE(refusal_to_resume(run).find(label), std::string::npos) << refusal_to_resume(run);
    expect_unusable(request(run), label);
    const Checkpoint opened(posix_disk(), directory);
    const auto report = checkpoint::verify(opened, checkpoint::VerifyDepth::kDeep);
    ASSERT_EQ(report.problems.size(), 1u);
    EXPECT_NE(report.problems[0].find(label), std::string::npos) << report.problems[0];
    const std::string to = folder_.file("export.h5");
    EXPECT_NE(error_text<DataError>([&] {
                checkpoint::export_file(posix_disk(), opened, {.to = to});
              }).find(label),
              std::string::npos);
    EXPECT_FALSE(fs::exists(to));
    EXPECT_NE(error_text<DataError>([&] { checkpoint::tensor_digests(opened); }).find(label),
              std::string::npos);
  }
}

TEST_F(NotFinite, AMomentIsNamedByAResumeAndAVerify) {
  const std::string run = with_value("exp_avg_sq", kNaN);
  const std::string label = "/exp_avg_sq[5, 6) isn't finite";
  EXPECT_NE(refusal_to_resume(run).find(label), std::string::npos) << refusal_to_resume(run);
  const auto report = checkpoint::verify(posix_disk(), folder_.file(path(run, kSteps)),
                                         checkpoint::VerifyDepth::kDeep);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_NE(report.problems[0].find(label), std::string::npos) << report.problems[0];
  EXPECT_GT(engine::evaluate_checkpoint(request(run)).num_tokens, 0) << "which needs no moments";
}

}  // namespace
}  // namespace sherd::testing
