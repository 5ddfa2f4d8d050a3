// What each way to exchange less costs: bytes as the algebra of docs/slow_links.md says, times that follow.

#include "engine/plan/search/exchange_forms.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "tests/engine/plan/plan_support.h"
#include "tests/support/values/error_text.h"

namespace sherd::engine {
namespace {

constexpr const char* kRecipe = R"(run: {name: slow, device: cpu}
model:
  num_layers: 4
  hidden_size: 512
  num_attention_heads: 8
  vocab_size: 1024
  activation: swiglu
  norm: rmsnorm
  positions: rope
  bias: false
data: {path: nowhere}
training: {seq_length: 256, global_batch_size: 8, micro_batch_size: 2, max_steps: 10}
parallelism: {data_parallel_shard_degree: 4}
zero_optimization: {stage: 2}
mixed_precision: {param_dtype: bf16}
checkpoint: {interval: 0}
)";

Cluster nodes(double bytes) {
  return {.machines = 2,
          .ranks_per_machine = 2,
          .device = "cpu",
          .memory_bytes = std::int64_t{8} << 30,
          .between = {.bytes = bytes, .latency = 1e-4}};
}

// Of a made-up processor: times don't depend on this machine and what else it does.
CpuRates made_up_rates() {
  const CpuKernelRates kernels{.matmul = {2e10, 4e10, 6e10, 7e10, 7e10},
                               .attention_forward = 2e10,
                               .attention_backward = 1e10,
                               .elements = 1e10,
                               .norm_backward = 5e9};
  return {.processor = "made up",
          .isa = "none",
          .cores = 2,
          .f32 = kernels,
          .bf16 = kernels,
          .update = 8e9,
          .add = 8e9,
          .exchange = 4e9,
          .call = 1e-6};
}

std::vector<ExchangeForm> forms(const Cluster& cluster, const Strings& sets = {}) {
  return exchange_forms(resolved(kRecipe, sets), cluster, made_up_rates());
}

const ExchangeForm& form(const std::vector<ExchangeForm>& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &ExchangeForm::name);
  EXPECT_NE(found, all.end()) << name;
  return *found;
}

TEST(ExchangeForms, SendFewerBytesAsTheirAlgebraSays) {
  const auto all = forms(nodes(1e7));
  const double own = form(all, "as it is").across_bytes;
  EXPECT_EQ(all[0].name, "as it is");
  EXPECT_TRUE(all[0].settings.empty());
  for (const ExchangeForm& each : all) EXPECT_EQ(each.refused, "") << each.name;
  // Of gradients and parameters, bytes a weight: 4 and 2, 1.03 both, 0.53 both. A slice of parameters
  // crosses once for the two ranks of a machine.
  EXPECT_NEAR(own / form(all, "int8 both ways").across_bytes, (4 + 2 / 2) / 1.55, 0.05);
  EXPECT_NEAR(own / form(all, "int4 both ways").across_bytes, (4 + 2 / 2) / 0.8, 0.1);
  EXPECT_GE(own / form(all, "int8 both ways").across_bytes, 2.4);
  // Each rank of a replica sends half of its half of the gradients, and a quarter of the parameters.
  EXPECT_NEAR(form(all, "a replica on each machine").across_bytes /
                  form(all, "replicas send slices: int4 gradients, int8 parameters").across_bytes,
              (4.0 + 4.0) / (0.53 + 1.03), 0.1);
  EXPECT_GE(own / form(all, "replicas apart for 50 steps, int8").across_bytes, 100.0);
}

TEST(ExchangeForms, TakeLessTimeOnASlowLinkAndChangeLittleOnAFastOne) {
  const auto slow = forms(nodes(1e6)), fast = forms(nodes(1e11));
  const double own = form(slow, "as it is").seconds;
  EXPECT_LT(form(slow, "int4 both ways").seconds, form(slow, "int8 both ways").seconds);
  EXPECT_LT(form(slow, "int8 both ways").seconds, 0.6 * own);
  EXPECT_LT(form(slow, "replicas apart for 500 steps, int4").seconds,
            form(slow, "replicas apart for 50 steps, int8").seconds);
  for (const ExchangeForm& each : fast) {
    EXPECT_NEAR(each.seconds / form(fast, "as it is").seconds, 1.0, 0.25) << each.name;
  }
}

// The exchange of replicas is once per step, whatever the micro-batches.
TEST(ExchangeForms, OfReplicasCrossOncePerStep) {
  const Strings many = {"training.global_batch_size=64", "training.gradient_accumulation_steps=8"};
  const double link = 1e6;
  const auto waits = [&](const Strings& sets) {
    return form(forms(nodes(link), sets), "a replica on each machine").seconds -
           form(forms(nodes(1e11), sets), "a replica on each machine").seconds;
  };
  EXPECT_NEAR(waits(many) / waits({}), 1.0, 0.3);
}

// Matrices of 512 by 512 and about three times that, with factors of a quarter of 512 vectors: half of
// what they have, or a bit more. Clipping, which this recipe has by default, is left out.
TEST(ExchangeForms, OfDionSendItsFactors) {
  const auto all = forms(nodes(1e7), {"optimizer.type=dion"});
  const ExchangeForm& factors = form(all, "factors of Dion's update over replicas");
  EXPECT_EQ(factors.refused, "");
  EXPECT_EQ(factors.settings.back(),
            (std::pair<std::string, std::string>("gradient_clipping.max_norm", "0")));
  const double ratio = factors.across_bytes / form(all, "a replica on each machine").across_bytes;
  EXPECT_GT(ratio, 0.4);
  EXPECT_LT(ratio, 0.6);
  for (const ExchangeForm& each : forms(nodes(1e7))) {
    EXPECT_NE(each.name, factors.name) << "adamw has no factors";
  }
}

TEST(ExchangeForms, ThatTheRecipeCantHaveSayWhy) {
  const Strings adapter = {"parallelism.sum_order=canonical"};
  const auto all = forms(nodes(1e7), adapter);
  EXPECT_NE(form(all, "int8 both ways").refused.find("canonical"), std::string::npos)
      << form(all, "int8 both ways").refused;
  EXPECT_NE(exchange_forms_text(all).find("   refused: "), std::string::npos);
}

// On one machine are a stage's ranks, so no replica can be there.
TEST(ExchangeForms, OfAPipelineHaveNoReplicas) {
  const auto all = forms(nodes(1e7), {"parallelism.pipeline_parallel_degree=2",
                                      "parallelism.data_parallel_shard_degree=2"});
  for (const ExchangeForm& each : all) {
    EXPECT_EQ(each.name.find("replica"), std::string::npos) << each.name;
  }
  EXPECT_EQ(all.size(), 3u);
}

TEST(ExchangeForms, OfParameterServersLeaveOutTheBytes) {
  const auto all = forms(
      nodes(1e7), {"parallelism.data_parallel_shard_degree=4", "parallelism.parameter_servers=1",
                   "zero_optimization.stage=1", "training.global_batch_size=8"});
  EXPECT_EQ(all[0].across_bytes, -1.0);
  EXPECT_GT(all[0].seconds, 0.0);
}

TEST(ExchangeForms, AreOfTheClustersDevice) {
  const auto own = forms(nodes(1e7)), of_gpus = forms(nodes(1e7), {"run.device=cuda"});
  EXPECT_EQ(own[0].across_bytes, of_gpus[0].across_bytes);
  EXPECT_EQ(own[0].seconds, of_gpus[0].seconds);
}

TEST(ExchangeForms, NeedTheClustersRanks) {
  Cluster three = nodes(1e7);
  three.machines = 3;
  EXPECT_NE(test::error_text<UsageError>([&] { forms(three); }).find("has 6 ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
