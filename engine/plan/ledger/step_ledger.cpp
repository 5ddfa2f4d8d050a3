#include "engine/plan/ledger/step_ledger.h"

#include <algorithm>
#include <map>

#include "engine/launch/device.h"
#include "engine/launch/ledger_machine.h"
#include "engine/offload/host_home.h"
#include "engine/plan/world_plan.h"
#include "engine/recipe/device_rules.h"
#include "engine/train/batch_buffers.h"
#include "engine/train/from_recipe.h"
#include "engine/train/training_step.h"

namespace sherd::engine {
namespace {

class RowLedger final : public Ledger {
 public:
  RowLedger(const GpuRates& rates, bool allow_tf32) : rates_(rates), allow_tf32_(allow_tf32) {}

  double launch(const Launch& launch) override {
    const double seconds = rates_.seconds(launch, allow_tf32_);
    if (!launch.matmul.empty()) matmuls_.insert(launch.matmul);
    constexpr LedgerRow::Class kClasses[] = {LedgerRow::Class::kMemory, LedgerRow::Class::kMatmul,
                                             LedgerRow::Class::kAttention};
    note({.name = std::string(launch.kernel),
          .of = kClasses[static_cast<std::size_t>(launch.kind)],
          .launches = 1,
          .read = launch.read,
          .written = launch.written,
          .flops = launch.flops,
          .seconds = seconds});
    return seconds;
  }
  double exchange(const Exchange& exchange) override {
    const double seconds = rates_.seconds(exchange);
    note({.name = fmt::format("{} of {}", exchange.collective, exchange.ranks.size()),
          .of = LedgerRow::Class::kExchange,
          .launches = 1,
          .read = exchange.bytes,
          .written = 0,
          .flops = 0.0,
          .seconds = seconds});
    return seconds;
  }
  double host_seconds_of_a_call() const override { return kHostSecondsOfACall; }

  void begin() {
    rows_.clear();
    matmuls_.clear();
    began_ = host_now;
    beside_compute = 0.0;
  }
  const std::set<std::string>& matmuls() const { return matmuls_; }
  double seconds() const { return host_now - began_ + beside_compute; }
  std::vector<LedgerRow> rows() const {
    std::vector<LedgerRow> rows;
    for (const auto& [name, row] : rows_) rows.push_back(row);
    std::ranges::stable_sort(rows, std::greater<>(), &LedgerRow::seconds);
    return rows;
  }

 private:
  void note(const LedgerRow& one) {
    LedgerRow& row =
        rows_.try_emplace(one.name, LedgerRow{.name = one.name, .of = one.of}).first->second;
    row.launches += one.launches;
    row.read += one.read;
    row.written += one.written;
    row.flops += one.flops;
    row.seconds += one.seconds;
  }

  const GpuRates rates_;
  const bool allow_tf32_;
  std::map<std::string, LedgerRow> rows_;
  std::set<std::string> matmuls_;
  double began_ = 0.0;
};

}  // namespace

double StepLedger::seconds_of(LedgerRow::Class of) const {
  double sum = 0.0;
  for (const LedgerRow& row : rows) {
    if (row.of == of) sum += row.seconds;
  }
  return sum;
}

double StepLedger::outside_products() const {
  const double products =
      seconds_of(LedgerRow::Class::kMatmul) + seconds_of(LedgerRow::Class::kAttention);
  return 1.0 - products / seconds;
}

// The second step: the first one finds no parameters gathered ahead.
StepLedger step_ledger(const LedgerRequest& request, const GpuRates& rates) {
  const auto& [options, mesh, stream, rank] = request;
  if (mesh.degree(sharding::kPipelineAxis) > 1) {
    throw UsageError(
        "--ledger doesn't support pipelines: one rank's launches don't show when the others' "
        "messages come. `sherd plan` shows the simulated schedule; "
        "--set parallelism.pipeline_parallel_degree=1 a rank's step.");
  }
  RowLedger ledger(rates, stream.allow_tf32);
  LaunchOptions launch;
  launch.mesh = mesh;
  launch.machine = ledger_machine(rank, stream, ledger);
  const WorldPlan plan(options, {.mesh = mesh,
                                 .device = DeviceKind::kCuda,
                                 .deterministic = stream.deterministic,
                                 .separate_memory = true});
  launch.plan = [&](int r) { return plan.of(r); };
  launch.host_plan = [&](int r) { return plan.host_of(r); };
  if (options.offloads()) {
    launch.offload_home = [&](const sharding::Rank& own) {
      return make_host_home(plan.offloaded_of(own.rank), own);
    };
  }
  StepLedger step;
  run_ranks(launch, [&](sharding::Rank& own) {
    ShardedModel model(options, own);
    TrainingStep training(options, model);
    const BatchBuffers buffers(own, batch_buffers("batch.0", options, kAlways));
    const TokenBatch batch = OwnPositions(options, own).of(buffers.device());
    const auto next = [&](std::int64_t, std::int64_t) { return batch; };
    training.run(0, next);
    ledger.begin();
    const StepResult result = training.run(1, next);
    step.seconds = ledger.seconds();
    step.exposed_seconds = result.exposed_comm_ms * 1e-3;
    step.rows = ledger.rows();
    step.matmuls = ledger.matmuls();
  });
  const double hidden = step.seconds_of(LedgerRow::Class::kExchange) - step.exposed_seconds;
  step.seconds += kTakenByExchanges * std::max(0.0, hidden);
  step.tokens_per_s =
      static_cast<double>(options.tokens_per_step(mesh.degree(sharding::data_axes()))) /
      step.seconds;
  step.mfu = step.tokens_per_s * flops_per_token(options.model) /
             (rates.stated_flops * static_cast<double>(mesh.world_size()));
  return step;
}

// On GPUs, one for each rank, whatever it says of devices.
StepLedger step_ledger(const Recipe& of, const GpuRates& rates) {
  Recipe recipe = of;
  recipe.run.device = DeviceChoice::kCuda;
  require_possible_on(DeviceKind::kCuda, recipe);
  return step_ledger({options_on_device(recipe), mesh_of(recipe), cuda_options(recipe).stream, 0},
                     rates);
}

std::vector<Sensitivity> sensitivities(const Recipe& recipe, const GpuRates& rates) {
  struct Part {
    const char* name;
    double GpuRates::*share;
  };
  constexpr Part kParts[] = {{"matmuls", &GpuRates::matmul_share},
                             {"attention", &GpuRates::attention_share},
                             {"memory", &GpuRates::memory_share},
                             {"exchanges", &GpuRates::exchange_share}};
  std::vector<Sensitivity> all;
  for (const auto& [name, share] : kParts) {
    const auto with = [&, member = share](double factor) {
      GpuRates other = rates;
      other.*member = factor;
      return step_ledger(recipe, other).tokens_per_s;
    };
    all.push_back({name, with(0.9), with(1.1)});
  }
  return all;
}

}  // namespace sherd::engine
