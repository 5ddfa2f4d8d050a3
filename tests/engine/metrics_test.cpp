#include "engine/metrics.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/support/error_text.h"
#include "tests/support/temp_folder.h"

namespace sherd::engine {
namespace {

using Existing = MetricsWriter::Existing;

StepMetrics example() {
  StepMetrics metrics;
  metrics.step = 12;
  metrics.loss = 4.25;
  metrics.grad_norm = 1.5;
  metrics.lr = 0.001;
  metrics.tokens = 9984;
  metrics.tokens_per_s = 81234.5;
  metrics.exposed_comm_ms = 0.25;
  metrics.comm_cpu_ms = 1.5;
  metrics.peak_bytes[static_cast<std::size_t>(Category::kParameters)] = 4096;
  metrics.peak_bytes[static_cast<std::size_t>(Category::kData)] = 64;
  metrics.total_peak_bytes = 4160;
  return metrics;
}

TEST(Metrics, AStepIsOneJsonObjectInAFixedOrder) {
  EXPECT_EQ(to_json(example()),
            R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
            R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,"comm_cpu_ms":1.5,)"
            R"("peak_bytes":{"parameters":4096,"data":64,"total":4160}})");
}

TEST(Metrics, WithLossScalingAStepHasItsScaleAndASkippedOneTheReason) {
  StepMetrics metrics = example();
  metrics.skipped = true;
  metrics.overflow = "not written";
  EXPECT_EQ(to_json(metrics), to_json(example())) << "without loss scaling";

  metrics = example();
  metrics.loss_scale = 65536.0;
  EXPECT_EQ(to_json(metrics), R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
                              R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,"comm_cpu_ms":1.5,)"
                              R"("loss_scale":65536.0,"skipped":false,)"
                              R"("peak_bytes":{"parameters":4096,"data":64,"total":4160}})");

  metrics.skipped = true;
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.overflow = "tensor \"block.3.mlp.up.weight\" (element 12) of unit \"block.3\"";
  const auto line = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(line["loss_scale"], 65536.0);
  EXPECT_EQ(line["skipped"], true);
  EXPECT_EQ(line["overflow"], metrics.overflow);
  EXPECT_EQ(line["grad_norm_text"], "inf");
}

TEST(Metrics, AnEvaluationIsItsOwnLine) {
  EvaluationMetrics metrics{.step = 12, .val_loss = 4.125, .num_tokens = 111488};
  EXPECT_EQ(to_json(metrics), R"({"step":12,"val_loss":4.125,"num_tokens":111488})");
  metrics.val_loss_20_batches = 4.0625;
  EXPECT_EQ(to_json(metrics),
            R"({"step":12,"val_loss":4.125,"val_loss_20_batches":4.0625,"num_tokens":111488})");
}

TEST(Metrics, NumbersReadBackBitForBit) {
  StepMetrics metrics;
  for (const double loss : {1.0 / 3, 0.1, 4.1234567890123456, 1e-308, 5e-324, 1.7e308,
                            static_cast<double>(2.3456789f), std::nextafter(2.0, 3.0)}) {
    metrics.loss = loss;
    const double read = nlohmann::json::parse(to_json(metrics))["loss"];
    EXPECT_EQ(std::bit_cast<std::uint64_t>(read), std::bit_cast<std::uint64_t>(loss));
  }
}

TEST(Metrics, WhatIsNotFiniteIsNullAndSaysWhat) {
  StepMetrics metrics;
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = -std::numeric_limits<double>::infinity();
  const auto line = nlohmann::json::parse(to_json(metrics));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_EQ(line["loss_text"], "nan");
  EXPECT_EQ(line["grad_norm_text"], "-inf");
  EXPECT_FALSE(line.contains("lr_text"));
}

TEST(MetricsWriter, ReplacesOrContinuesAnEarlierRun) {
  const test::TempFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\":1}\n");
  const std::string line = to_json(example()) + "\n";
  MetricsWriter(path, Existing::kContinue).write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\":1}\n" + line);
  {
    MetricsWriter writer(path, Existing::kReplace);
    writer.write(example());
    writer.write(EvaluationMetrics{.step = 12, .val_loss = 4.125, .num_tokens = 64});
    EXPECT_EQ(folder.read("metrics.jsonl"),
              line + "{\"step\":12,\"val_loss\":4.125,\"num_tokens\":64}\n")
        << "lines are there before the writer is closed";
  }
}

TEST(MetricsWriter, StartsAFreshLineAfterOneThatACrashCutOff) {
  const test::TempFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\":1}\n{\"st");
  MetricsWriter(path, Existing::kContinue).write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\":1}\n{\"st\n" + to_json(example()) + "\n");
}

TEST(MetricsWriter, NamesTheFileItCannotWrite) {
  const test::TempFolder folder;
  const std::string path = folder.file("missing/metrics.jsonl");
  EXPECT_EQ(test::error_text<DataError>([&] { MetricsWriter(path, Existing::kReplace); }),
            path +
                ": can't be opened for writing (No such file or directory); set run.output_dir "
                "to a folder that this user may write.");
  MetricsWriter full("/dev/full", Existing::kReplace);
  EXPECT_EQ(test::error_text<DataError>([&] { full.write(example()); }),
            "/dev/full: can't be written (No space left on device); make room or set another "
            "run.output_dir.");
}

TEST(MetricsWriter, WhileASaveMayGiveRoomBackLinesWaitAndAreNotLost) {
  MetricsWriter full("/dev/full", Existing::kReplace);
  full.wait_for_room(true);
  full.write(example());
  full.write(example());
  EXPECT_THROW(full.sync(), DataError);
}

// A limit on file size cuts a write short just as a disk that becomes full does.
TEST(MetricsWriter, TakesBackALineThatDidNotFit) {
  const test::TempFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  MetricsWriter writer(path, Existing::kReplace);
  writer.write(example());
  const std::string before = folder.read("metrics.jsonl");

  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit tight{before.size() + 10, limit.rlim_max};
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string error = test::error_text<DataError>([&] { writer.write(example()); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, old_action);

  EXPECT_EQ(error, path +
                       ": can't be written (File too large); make room or set another "
                       "run.output_dir.");
  EXPECT_EQ(folder.read("metrics.jsonl"), before);
  writer.write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), before + before);
}

}  // namespace
}  // namespace sherd::engine
