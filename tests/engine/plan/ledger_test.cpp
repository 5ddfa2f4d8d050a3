// What a step's ledger counts, compared with numbers worked out by hand and the plan of what ranks send. Which kernels are
// launched how often: tests/emulated_gpu/launches_test.cpp.

#include <fmt/ranges.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "engine/launch/device.h"
#include "engine/plan/ledger/step_ledger.h"
#include "engine/train/from_recipe.h"
#include "engine/train/training_step.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

// Sequences of 256 tokens, 64 of them in a step.
constexpr const char* kRecipe = R"(run: {name: small, device: cuda}
model:
  num_layers: 6
  hidden_size: 512
  num_attention_heads: 4
  ffn_hidden_size: 1024
  vocab_size: 1024
  activation: swiglu
  norm: rmsnorm
  positions: rope
  bias: false
  tie_embeddings: false
data: {path: nowhere}
training: {seq_length: 256, global_batch_size: 64, micro_batch_size: 8, max_steps: 10}
mixed_precision: {param_dtype: bf16}
checkpoint: {interval: 0}
)";

StepLedger ledger_of(const Strings& sets, const GpuRates& rates = h100_rates()) {
  return step_ledger(resolved(kRecipe, sets).values, rates);
}

double flops_of(const StepLedger& step, LedgerRow::Class of) {
  double flops = 0.0;
  for (const LedgerRow& row : step.rows) flops += row.of == of ? row.flops : 0.0;
  return flops;
}

TEST(Ledger, WhatGpusRefuseIsRefused) {
  for (const char* set :
       {"optimizer.type=adafactor", "powersgd.rank=2", "dgc.compress_ratio=0.01"}) {
    EXPECT_THROW(ledger_of({set, "parallelism.data_parallel_replicate_degree=2"}), UsageError)
        << set;
  }
}

TEST(Ledger, MatmulsTakeSixFlopsForEveryWeightAndToken) {
  const double of_a_layer = 4.0 * 512 * 512 + 3.0 * 512 * 1024, head = 1024.0 * 512;
  EXPECT_EQ(flops_of(ledger_of({}), LedgerRow::Class::kMatmul),
            6.0 * (6 * of_a_layer + head) * 64 * 256);
}

// The last block's activations are still there, and the result of a block's last matmul isn't needed.
TEST(Ledger, FullRecomputeTakesAllBlocksButTheLastTwice) {
  const double of_a_layer = 4.0 * 512 * 512 + 3.0 * 512 * 1024, head = 1024.0 * 512;
  const double again = 5 * (of_a_layer - 512.0 * 1024);
  EXPECT_EQ(flops_of(ledger_of({"activation_checkpointing.mode=full"}), LedgerRow::Class::kMatmul),
            (6.0 * (6 * of_a_layer + head) + 2.0 * again) * 64 * 256);
}

// Two products forward and five backward, of a query and each key that it sees.
TEST(Ledger, AttentionCountsWhatACausalMaskLeaves) {
  const double pairs = 256.0 * 257 / 2;
  EXPECT_EQ(flops_of(ledger_of({}), LedgerRow::Class::kAttention), 6.0 * 64 * 7 * 2 * pairs * 512);
}

TEST(Ledger, AWindowTakesItsKeysAlone) {
  const double pairs = 32.0 * 33 / 2 + (256.0 - 32) * 32;
  double flops = 0.0;
  for (const LedgerRow& row : ledger_of({"model.window=32"}).rows) {
    if (row.name == "attention_forward") flops = row.flops;
  }
  EXPECT_EQ(flops, 6.0 * 64 * 2 * 2 * pairs * 512);
}

// A matrix [m, n] with m <= n takes five rounds of X X^T, A A and a product with X, over the four
// matrices of attention and the three of the feed-forward layer.
TEST(Ledger, MuonsMatmulsAreCountedAndHaveTheRateOfTheirType) {
  const double adamw = flops_of(ledger_of({}), LedgerRow::Class::kMatmul);
  const auto round = [](double small, double large) {
    return 2 * (2 * small * small * large + small * small * small);
  };
  const double of_a_layer = 4 * round(512, 512) + 3 * round(512, 1024);
  const auto seconds = [&](Strings sets) {
    sets.push_back("optimizer.type=muon");
    const StepLedger step = ledger_of(sets);
    EXPECT_EQ(flops_of(step, LedgerRow::Class::kMatmul) - adamw, 5 * 6 * of_a_layer);
    return step.seconds_of(LedgerRow::Class::kMatmul);
  };
  const double f32 = seconds({}), tf32 = seconds({"mixed_precision.allow_tf32=true"});
  EXPECT_GT(f32, tf32);
  EXPECT_GT(tf32, seconds({"optimizer.muon_dtype=bf16"}));
}

// The bytes that a rank sends in a step's exchanges (sharding/comm/communicator.h).
std::int64_t sent_bytes(const StepLedger& step) {
  std::int64_t sent = 0;
  for (const LedgerRow& row : step.rows) {
    if (row.of != LedgerRow::Class::kExchange) continue;
    const std::size_t of = row.name.find(" of ");
    const std::int64_t ranks = std::stoll(row.name.substr(of + 4));
    sent += (row.name.starts_with("all_reduce") ? 2 : 1) * (row.read / ranks) * (ranks - 1);
  }
  return sent;
}

TEST(Ledger, ExchangesAreThoseOfTheTrafficPlan) {
  const std::vector<Strings> meshes = {
      {"parallelism.data_parallel_shard_degree=4", "zero_optimization.stage=3"},
      {"parallelism.data_parallel_shard_degree=4", "zero_optimization.stage=2"},
      {"parallelism.data_parallel_shard_degree=4", "zero_optimization.stage=1"},
      {"parallelism.data_parallel_shard_degree=4", "zero_optimization.stage=0"},
      {"parallelism.data_parallel_shard_degree=2", "parallelism.data_parallel_replicate_degree=2",
       "zero_optimization.stage=3"},
      {"parallelism.data_parallel_shard_degree=2", "parallelism.tensor_parallel_degree=2",
       "zero_optimization.stage=3"},
      {"parallelism.tensor_parallel_degree=4", "parallelism.sequence_parallel=true"},
      {"parallelism.data_parallel_shard_degree=2", "parallelism.context_parallel_degree=2"},
      {"parallelism.context_parallel_degree=4", "parallelism.context_parallel_method=all_gather"}};
  for (const Strings& mesh : meshes) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(mesh, " ")));
    const Recipe recipe = resolved(kRecipe, mesh).values;
    const sharding::Traffic planned =
        TrainingStep::traffic(training_options(recipe), mesh_of(recipe), 0, DeviceKind::kCuda);
    EXPECT_EQ(sent_bytes(step_ledger(recipe, h100_rates())), planned.total_bytes());
  }
}

double seconds_of_all_rows(const StepLedger& step) {
  return std::accumulate(step.rows.begin(), step.rows.end(), 0.0,
                         [](double sum, const LedgerRow& row) { return sum + row.seconds; });
}

TEST(Ledger, AStepOnOneGpuTakesAsLongAsItsKernels) {
  const StepLedger step = ledger_of({"model.hidden_size=4096", "model.num_attention_heads=16"});
  const double kernels = seconds_of_all_rows(step);
  EXPECT_NEAR(step.seconds, kernels, 0.01 * kernels);
  EXPECT_LT(step.exposed_seconds, 1e-5);
}

// Waited for or not, the gather stream's casts are there once.
TEST(Ledger, KernelsOfOtherStreamsCountOnce) {
  for (const char* depth : {"0", "1"}) {
    const StepLedger step = ledger_of({"model.hidden_size=4096", "model.num_attention_heads=16",
                                       "zero_optimization.stage=3",
                                       fmt::format("zero_optimization.prefetch_depth={}", depth)});
    EXPECT_NEAR(step.seconds, seconds_of_all_rows(step), 0.02 * step.seconds) << depth;
  }
}

TEST(Ledger, AGraphIsOneCallOfTheHosts) {
  const Strings small = {"model.hidden_size=64", "training.seq_length=16",
                         "training.micro_batch_size=1", "run.cuda_graphs=true"};
  const StepLedger step = ledger_of(small);
  double launches = 0.0;
  for (const LedgerRow& row : step.rows) launches += static_cast<double>(row.launches);
  EXPECT_LT(step.seconds, 0.8 * launches * kHostSecondsOfACall);
}

// One GPU computes for all streams: what the reduce stream adds isn't free.
TEST(Ledger, KernelsOfOtherStreamsTakeTheirTimeFromTheComputation) {
  const Strings large = {"model.hidden_size=4096", "model.num_attention_heads=16"};
  Strings beside = large;
  beside.push_back("zero_optimization.grad_sync=every_micro_step");
  EXPECT_NEAR(ledger_of(beside).seconds, ledger_of(large).seconds, 0.01 * ledger_of(large).seconds);
}

TEST(Ledger, KernelsThatTheHostCantLaunchInTimeLeaveTheGpuIdle) {
  const StepLedger step =
      ledger_of({"model.hidden_size=64", "training.seq_length=16", "training.micro_batch_size=1"});
  const double launches = std::accumulate(
      step.rows.begin(), step.rows.end(), 0.0,
      [](double sum, const LedgerRow& row) { return sum + static_cast<double>(row.launches); });
  EXPECT_NEAR(step.seconds, launches * kHostSecondsOfACall, 0.2 * step.seconds);
}

TEST(Ledger, GathersThatArePrefetchedOverlapTheComputation) {
  const Strings sharded = {
      "model.hidden_size=4096",        "model.num_attention_heads=16",
      "model.ffn_hidden_size=8192",    "training.seq_length=2048",
      "training.global_batch_size=64", "parallelism.data_parallel_shard_degree=8",
      "zero_optimization.stage=3"};
  const auto with_depth = [&](int depth) {
    Strings sets = sharded;
    sets.push_back(fmt::format("zero_optimization.prefetch_depth={}", depth));
    return ledger_of(sets);
  };
  const StepLedger without = with_depth(0), with = with_depth(1);
  double gathers = 0.0;
  for (const LedgerRow& row : without.rows) {
    if (row.name == "all_gather of 8") gathers = row.seconds;
  }
  EXPECT_GT(without.exposed_seconds, 0.9 * gathers);
  EXPECT_LT(with.exposed_seconds, 0.3 * gathers);
  EXPECT_LT(with.seconds, without.seconds);
}

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Ledger, OfATrillionParametersTakesNoMemory) {
  const std::int64_t before = resident_bytes();
  const Recipe recipe = resolved(kTrillionRecipe).values;
  const StepLedger step = step_ledger(recipe, h100_rates());
  EXPECT_GT(step.tokens_per_s, 0.0);
  EXPECT_LT(resident_bytes() - before, 256 << 20);
}

TEST(Ledger, RatesGiveTheTimesThatWereMeasured) {
  const GpuRates rates = h100_rates();
  const std::vector<int> node = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_NEAR(rates.seconds({"all_reduce", 1 << 20, node}), 27e-6, 1e-7);
  EXPECT_NEAR(rates.seconds({"all_reduce", 256 << 20, node}), 1.75 * (256 << 20) / 422e9, 1e-6);
  EXPECT_NEAR(rates.seconds({"all_gather", 1 << 30, node}), 0.875 * (1 << 30) / 360e9, 1e-5);
  const Launch copy{.kernel = "cast", .read = 1 << 30, .written = 1 << 30};
  EXPECT_NEAR(rates.seconds(copy, false), 2.0 * (1 << 30) / (0.97 * 2980e9), 2e-6);
}

TEST(Ledger, MoreMachinesMakeNoCollectiveFaster) {
  for (const std::string_view collective : {"all_gather", "reduce_scatter", "all_reduce"}) {
    double before = 0.0;
    for (const int ranks : {8, 16, 32, 64}) {
      std::vector<int> all(static_cast<std::size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const double seconds = h100_rates().seconds({collective, std::int64_t{4} << 30, all});
      EXPECT_GE(seconds, before) << collective << " of " << ranks;
      before = seconds;
    }
  }
}

TEST(Ledger, AClassOfWorkThatIsSlowerMakesTheStepSlower) {
  const Recipe recipe =
      resolved(kRecipe, {"model.hidden_size=4096", "model.num_attention_heads=16",
                         "parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=3",
                         "zero_optimization.prefetch_depth=0"})
          .values;
  const double now = step_ledger(recipe, h100_rates()).tokens_per_s;
  for (const auto& [of, slower, faster] : sensitivities(recipe, h100_rates())) {
    EXPECT_LT(slower, now) << of;
    EXPECT_GT(faster, now) << of;
  }
}

TEST(Ledger, ARunThatRepeatsItsBitsAddsGradientsApartFromTheirMatmuls) {
  const auto added_bytes = [](const char* deterministic) {
    std::int64_t bytes = 0;
    for (const LedgerRow& row :
         ledger_of({fmt::format("run.deterministic={}", deterministic)}).rows) {
      bytes += row.name == "add" ? row.read : 0;
    }
    return bytes;
  };
  EXPECT_LT(2 * added_bytes("false"), added_bytes("true"));
}

TEST(Ledger, GoesWithoutAPipeline) {
  EXPECT_THROW(ledger_of({"parallelism.pipeline_parallel_degree=2"}), UsageError);
}

// Moments and masters of bf16: 12 bytes a weight each way, over links that are slow enough to decide.
TEST(Ledger, StateOnTheHostTakesTheTimeOfItsLink) {
  const Strings on_host = {"zero_optimization.offload_optimizer=cpu"};
  const StepLedger fast = ledger_of(on_host), resident = ledger_of({});
  std::int64_t copied = 0;
  for (const LedgerRow& row : fast.rows) copied += row.name == kHostCopy ? row.read : 0;
  const std::int64_t weights =
      6 * (4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 2 * 1024 * 512 + 512;
  // Slices are padded a little, and there are tokens.
  EXPECT_NEAR(static_cast<double>(copied) / static_cast<double>(2 * 12 * weights), 1.0, 1e-4);
  GpuRates slow = h100_rates();
  slow.links.host = 1e9;
  const double each_way = 12.0 * static_cast<double>(weights) / 1e9;
  const double longer = ledger_of(on_host, slow).seconds - resident.seconds;
  EXPECT_NEAR(longer / each_way, 1.0, 0.25);
  EXPECT_LT(fast.seconds - resident.seconds, 0.25 * each_way);
}

// 4 bytes of gradient a weight come to the host and 2 go back. Memory that is slow enough to decide takes 30: the
// gradient, FP32 weights and two moments are read, all but the gradient written, and rounded weights.
TEST(Ledger, UpdatesByTheHostsCoresTakeTheTimeOfItsMemory) {
  const Strings by_cores = {"zero_optimization.offload_optimizer=cpu",
                            "zero_optimization.offload_update=cpu"};
  GpuRates slow = h100_rates();
  slow.links.host_memory = 10e9;
  const StepLedger ledger = ledger_of(by_cores, slow), resident = ledger_of({});
  const double weights = 6 * (4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 2 * 1024 * 512 + 512;
  double copied = 0.0, updated = 0.0;
  for (const LedgerRow& row : ledger.rows) {
    if (row.name == kHostCopy) copied += static_cast<double>(row.read);
    if (row.name == kHostWork) updated += static_cast<double>(row.read + row.written);
  }
  EXPECT_NEAR(copied / (6.0 * weights), 1.0, 1e-3);
  EXPECT_NEAR(updated / (30.0 * weights), 1.0, 1e-3);
  const double longer = ledger.seconds - resident.seconds;
  EXPECT_LT(longer, 30.0 * weights / 10e9);
  EXPECT_GT(longer, 0.5 * 30.0 * weights / 10e9);
}

}  // namespace
}  // namespace sherd::engine
