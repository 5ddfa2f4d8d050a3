#include "engine/report/metrics.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using Existing = MetricsWriter::Existing;

const std::string kVersion2 = "{\"metrics_version\":2}\n";

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

TEST(Metrics, OnSeveralRanksAStepSaysForWhichAxesItWaited) {
  StepMetrics metrics = example();
  metrics.exposed_by_axis = {{"shard", 0.0625}, {"tensor", 0.125}};
  EXPECT_EQ(to_json(metrics),
            R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
            R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,)"
            R"("exposed_comm_ms_by_axis":{"shard":0.0625,"tensor":0.125},"comm_cpu_ms":1.5,)"
            R"("peak_bytes":{"parameters":4096,"data":64,"total":4160}})");
}

TEST(Metrics, OnSeveralRanksAStepNamesTheSlowest) {
  StepMetrics metrics = example();
  metrics.slowest = {3, 90.5, 50.25};
  EXPECT_EQ(to_json(metrics), R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
                              R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,"comm_cpu_ms":1.5,)"
                              R"("slowest_rank":3,"slowest_rank_ms":90.5,"median_rank_ms":50.25,)"
                              R"("peak_bytes":{"parameters":4096,"data":64,"total":4160}})");
}

TEST(Metrics, AStepHasItsZLossAndItsLargestAttentionScores) {
  StepMetrics metrics = example();
  metrics.z_loss = 0.0625;
  metrics.attention_logits = {.largest = 12.5, .layer = 1, .head = 3, .of_layers = {9.25, 12.5}};
  metrics.clipped_heads = 2;
  EXPECT_EQ(to_json(metrics), R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
                              R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,"comm_cpu_ms":1.5,)"
                              R"("z_loss":0.0625,"max_attention_logit":12.5,)"
                              R"("max_attention_logit_layer":1,"max_attention_logit_head":3,)"
                              R"("max_attention_logits":[9.25,12.5],"clipped_heads":2,)"
                              R"("peak_bytes":{"parameters":4096,"data":64,"total":4160}})");
}

TEST(Metrics, OfAModelWithExpertsAStepSaysHowEvenlyTokensAreDealt) {
  StepMetrics metrics = example();
  metrics.experts = {.balance_loss = 0.0125, .z_loss = 0.0, .layers = {{1, 96, 160, 128.0, 0}}};
  EXPECT_EQ(to_json(metrics), R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
                              R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,"comm_cpu_ms":1.5,)"
                              R"("balance_loss":0.0125,"router_z_loss":0.0,)"
                              R"("experts":[{"layer":1,"min":96,"max":160,"mean":128.0,"idle":0}],)"
                              R"("peak_bytes":{"parameters":4096,"data":64,"total":4160}})");
}

TEST(Metrics, OnAGpuWithATableOfMatmulsAStepNamesIt) {
  StepMetrics metrics = example();
  metrics.matmul_table = "3 measured matmul algorithms of t.txt";
  EXPECT_EQ(to_json(metrics), R"({"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,)"
                              R"("tokens_per_s":81234.5,"exposed_comm_ms":0.25,"comm_cpu_ms":1.5,)"
                              R"("matmul_table":"3 measured matmul algorithms of t.txt",)"
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
  EvaluationMetrics of_text = metrics;
  of_text.perplexity = 61.5;
  of_text.bits_per_byte = 1.25;
  EXPECT_EQ(
      to_json(of_text),
      R"({"step":12,"val_loss":4.125,"num_tokens":111488,"perplexity":61.5,"bits_per_byte":1.25})");
  metrics.val_loss_20_batches = 4.0625;
  EXPECT_EQ(to_json(metrics),
            R"({"step":12,"val_loss":4.125,"val_loss_20_batches":4.0625,"num_tokens":111488})");
}

TEST(Metrics, ASaveIsItsOwnLineOfTheLastStepInIt) {
  const SaveMetrics metrics{
      .saved = 12, .bytes = 64, .write_mib_per_s = 2.5, .stalled_ms = 0.25, .save_s = 0.5};
  EXPECT_EQ(to_json(metrics),
            R"({"step":12,"saved":12,"bytes":64,"write_mib_per_s":2.5,"stalled_ms":0.25,)"
            R"("save_s":0.5})");
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
              kVersion2 + line + "{\"step\":12,\"val_loss\":4.125,\"num_tokens\":64}\n")
        << "lines are there before the writer is closed";
  }
}

TEST(MetricsWriter, StartsAFreshLineAfterOneThatACrashCutOff) {
  const test::TempFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\":1}\n{\"st");
  MetricsWriter(path, Existing::kContinue).write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\":1}\n{\"st\n" + to_json(example()) + "\n");
}

/// A disk without room as long as `full` says so.
test::HookedDisk::Before without_room(const bool& full) {
  return [&full](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (!full || !call.writes()) return {};
    return -ENOSPC;
  };
}

TEST(MetricsWriter, NamesTheFileItCannotWrite) {
  const test::TempFolder folder;
  const std::string path = folder.file("missing/metrics.jsonl");
  EXPECT_EQ(test::error_text<DataError>([&] { MetricsWriter(path, Existing::kReplace); }),
            path +
                ": can't be opened for writing (No such file or directory); set run.output_dir "
                "to a folder that this user may write.");
  const bool full = true;
  test::HookedDisk disk(without_room(full));
  const std::string file = folder.file("metrics.jsonl");
  MetricsWriter writer(file, Existing::kReplace, {&disk});
  EXPECT_EQ(test::error_text<DataError>([&] { writer.write(example()); }),
            file +
                ": can't be written (No space left on device); make room or set another "
                "run.output_dir.");
}

TEST(MetricsWriter, WhileASaveMayGiveRoomBackLinesWaitAndAreNotLost) {
  const test::TempFolder folder;
  bool full = true;
  test::HookedDisk disk(without_room(full));
  MetricsWriter writer(folder.file("metrics.jsonl"), Existing::kReplace, {&disk});
  writer.wait_for_room(true);
  writer.write(example());
  writer.write(example());
  EXPECT_THROW(writer.sync(), DataError);
  writer.write(example());
  full = false;
  writer.write(example());
  const std::string line = to_json(example()) + "\n";
  EXPECT_EQ(folder.read("metrics.jsonl"), kVersion2 + line + line);
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
  EXPECT_EQ(folder.read("metrics.jsonl"), before + to_json(example()) + "\n");
}

// ------------------------------------------------------------------------------ others in the folder

struct Noticing {
  std::vector<std::string> said;
  MetricsOptions options() {
    return {.notice = [this](const std::string& text) { said.push_back(text); }};
  }
};

TEST(MetricsWriter, AFileThatSomebodyRemovedIsMadeAgainAndThatIsSaid) {
  const test::TempFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  const std::string line = to_json(example()) + "\n";
  Noticing noticing;
  MetricsWriter writer(path, Existing::kReplace, noticing.options());
  writer.write(example());
  fs::remove(path);
  writer.write(example());
  writer.write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), kVersion2 + line + line);
  ASSERT_EQ(noticing.said.size(), 1u);
  EXPECT_EQ(noticing.said[0], path + " was removed during the run; further lines go to a new file");

  folder.write("other", "{\"step\":1}\n");
  fs::rename(folder.file("other"), path);  // as editors save
  writer.write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\":1}\n" + line);
  EXPECT_EQ(noticing.said.size(), 2u);

  fs::resize_file(path, 0);  // as `: > metrics.jsonl` does
  writer.write(example());
  EXPECT_EQ(folder.read("metrics.jsonl"), kVersion2 + line);
}

TEST(MetricsWriter, NeverWritesThroughALinkAndNeverWaitsForAPipe) {
  const test::TempFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  const std::string victim = folder.write("victim", "untouched\n");
  const auto expect_refused = [&](const std::string& why) {
    EXPECT_NE(
        test::error_text<DataError>([&] { MetricsWriter(path, Existing::kReplace); }).find(why),
        std::string::npos);
    fs::remove(path);
    MetricsWriter writer(path, Existing::kReplace);
    fs::remove(path);
    return writer;
  };
  {
    fs::create_symlink(victim, path);
    MetricsWriter writer = expect_refused("is a symbolic link");
    fs::create_symlink(victim, path);
    EXPECT_THROW(writer.write(example()), DataError) << "put there during the run";
    fs::remove(path);
  }
  {
    fs::create_hard_link(victim, path);
    MetricsWriter writer = expect_refused("has another name too");
    fs::create_hard_link(victim, path);
    EXPECT_THROW(writer.write(example()), DataError);
    fs::remove(path);
  }
  {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    MetricsWriter writer = expect_refused("isn't a plain file");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_THROW(writer.write(example()), DataError);
    EXPECT_THROW(keep_metrics_of(path, 3), DataError) << "no process writes into the pipe";
  }
  EXPECT_EQ(folder.read("victim"), "untouched\n");
}

TEST(MetricsWriter, WritesNothingIntoAFolderThatIsAnotherRunsNow) {
  const test::TempFolder parent;
  fs::create_directory(parent.file("run"));
  const checkpoint::OutputLock lock(checkpoint::posix_disk(), parent.file("run"));
  MetricsWriter writer(parent.file("run/metrics.jsonl"), Existing::kReplace, {.lock = &lock});
  writer.write(example());
  fs::rename(parent.file("run"), parent.file("old"));
  fs::create_directory(parent.file("run"));
  EXPECT_THROW(writer.write(example()), checkpoint::LockLost);
  EXPECT_TRUE(fs::is_empty(parent.file("run")));
  EXPECT_EQ(parent.read("old/metrics.jsonl"), kVersion2 + to_json(example()) + "\n");
}

// ------------------------------------------------------------------------------ a resume

TEST(KeepMetrics, OfAStepThatIsEvaluatedAnewTheEvaluationGoesAndTheRestStays) {
  const test::TempFolder folder;
  const std::string earlier = kVersion2 + "{\"step\":4,\"val_loss\":2.5}\n";
  const std::string step = "{\"step\":5,\"loss\":2.5}\n", saved = "{\"step\":5,\"saved\":5}\n";
  const std::string evaluated = "{\"step\":5,\"val_loss\":2.25}\n";
  const std::string all = earlier + step + saved + evaluated;
  const std::string path = folder.write("metrics.jsonl", all + "{\"step\":6,\"loss\":2}\n{\"ste");
  keep_metrics_of(path, 5);
  EXPECT_EQ(folder.read("metrics.jsonl"), all);
  keep_metrics_of(path, 5, true);
  EXPECT_EQ(folder.read("metrics.jsonl"), earlier + step + saved);
}

// As the first programs wrote them: the first step is 0, and no line says a version.
TEST(KeepMetrics, LinesThatCountFrom0AreCountedFrom1AndOtherwiseStayAsTheyWere) {
  const test::TempFolder folder;
  const std::string path = folder.write(
      "metrics.jsonl",
      "{\"step\":0,\"loss\":4.8283137373023015,\"loss_scale\":65536.0}\n"
      "{\"step\":1,\"loss\":null,\"loss_text\":\"nan\",\"lr\":1e-300}\n"
      "{\"step\":1,\"saved\":2}\n{\"step\":1,\"val_loss\":4.5}\n{\"step\":2,\"loss\":4.25}\n");
  const std::string kept = kVersion2 +
                           "{\"step\":1,\"loss\":4.8283137373023015,\"loss_scale\":65536.0}\n"
                           "{\"step\":2,\"loss\":null,\"loss_text\":\"nan\",\"lr\":1e-300}\n"
                           "{\"step\":2,\"saved\":2}\n";
  keep_metrics_of(path, 2, true);
  EXPECT_EQ(folder.read("metrics.jsonl"), kept);
  keep_metrics_of(path, 2);
  EXPECT_EQ(folder.read("metrics.jsonl"), kept) << "they are counted from 1 now";
}

TEST(KeepMetrics, WhereNoLineStaysTheFileIsEmptyAndTheNextLineBringsTheVersion) {
  const test::TempFolder folder;
  for (const std::string& before : {kVersion2 + "{\"step\":1}\n", std::string("{\"step\":0}\n")}) {
    const std::string path = folder.write("metrics.jsonl", before);
    keep_metrics_of(path, 0);
    MetricsWriter(path, Existing::kContinue).write(example());
    EXPECT_EQ(folder.read("metrics.jsonl"), kVersion2 + to_json(example()) + "\n");
  }
}

TEST(KeepMetrics, AVersionThatCameLaterIsRefusedAndTheFileLeftAsItWas) {
  const test::TempFolder folder;
  const std::string later = "{\"metrics_version\":3}\n{\"step\":1,\"loss\":2}\n";
  const std::string path = folder.write("metrics.jsonl", later);
  EXPECT_EQ(test::error_text<DataError>([&] { keep_metrics_of(path, 1); }),
            path +
                ": has metrics of version 3, and this program knows 1 and 2; continue with the "
                "program that wrote it, or move the file away.");
  EXPECT_EQ(folder.read("metrics.jsonl"), later);
}

TEST(KeepMetrics, AFileThatIsNotThereStaysAway) {
  const test::TempFolder folder;
  keep_metrics_of(folder.file("metrics.jsonl"), 5);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace sherd::engine
