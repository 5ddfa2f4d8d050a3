#include "engine/plan/exchange_plan.h"

#include <algorithm>

#include "core/byte_size.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/training_step.h"
#include "optim/outer_update.h"

namespace sherd::engine {
namespace {

ExchangePlan plan_of_rank(const TrainingOptions& options, const sharding::Mesh& mesh, int rank) {
  ExchangePlan plan{.options = options.local_updates, .rank = rank};
  for (int fragment = 0; fragment < plan.options.num_fragments; ++fragment) {
    plan.fragment_bytes.push_back(
        TrainingStep::exchange_traffic(options, mesh, rank, fragment).total_bytes());
    plan.round_bytes += plan.fragment_bytes.back();
  }
  const sharding::ShardingPlan units = sharding_plan(options, mesh, rank);
  for (const BufferSpec& buffer : optim::OuterUpdate::buffers(options.local_updates, units,
                                                              fragments_of(options, units.units))) {
    plan.held_bytes += buffer.bytes();
  }
  return plan;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

// Ranks at one place of the pipeline are alike.
std::optional<ExchangePlan> exchange_plan(const TrainingOptions& options,
                                          const sharding::Mesh& mesh) {
  if (!options.local_updates.active()) return std::nullopt;
  std::optional<ExchangePlan> most;
  const int ranks = mesh.world_size() / mesh.degree(sharding::kPipelineAxis);
  for (int first = 0; first < mesh.world_size(); first += ranks) {
    ExchangePlan plan = plan_of_rank(options, mesh, first);
    if (!most || plan.round_bytes > most->round_bytes) most = std::move(plan);
  }
  return most;
}

std::string exchange_plan_text(const ExchangePlan& plan) {
  const optim::LocalUpdates& local = plan.options;
  const ByteUnit unit = unit_for(std::max(plan.round_bytes, plan.held_bytes));
  std::string text =
      fmt::format("{} train apart: one of {} is exchanged every {}, {} before it is applied\n",
                  counted(local.num_replicas, "replica"), counted(local.num_fragments, "fragment"),
                  counted(local.period(), "step"), counted(local.fragment_sync_delay, "step"));
  const auto line = [&](const std::string& what, const std::string& amount) {
    text += fmt::format("{:<46}{:>26}\n", what, amount);
  };
  line(fmt::format("in addition to the above, by rank {}", plan.rank), std::string(unit.name));
  for (std::size_t i = 0; i < plan.fragment_bytes.size(); ++i) {
    line(fmt::format("sent for fragment {}", i), unit.text(plan.fragment_bytes[i]));
  }
  line("sent in " + counted(local.sync_every, "step"), unit.text(plan.round_bytes));
  line("sent per step, on average", fmt::format("{:.3g}", plan.bytes_per_step() / unit.bytes));
  line("memory for it, part of the table's", unit.text(plan.held_bytes));
  return text;
}

}  // namespace sherd::engine
