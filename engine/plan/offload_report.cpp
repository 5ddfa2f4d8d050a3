#include "engine/plan/offload_report.h"

#include <fmt/format.h>

#include "core/human_text.h"
#include "core/offload_home.h"
#include "engine/train/training_step.h"

namespace sherd::engine {
namespace {

std::int64_t file_bytes(const MemoryPlan& plan, bool saves) {
  std::int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers()) bytes += disk_room_of(buffer.spec, saves);
  return bytes;
}

std::string kinds_text(const BytesByCategory& bytes) {
  std::string text;
  for (int i = 0; i < kNumCategories; ++i) {
    if (bytes[static_cast<std::size_t>(i)] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<Category>(i)),
                        human_bytes(bytes[static_cast<std::size_t>(i)]));
  }
  return text;
}

}  // namespace

std::optional<double> OffloadReport::step_seconds() const {
  if (!rates) return std::nullopt;
  return static_cast<double>(all_step.read) / rates->read +
         static_cast<double>(all_step.written) / rates->write;
}

std::optional<OffloadReport> offload_report(const PlannedRecipe& planned, const WorldPlan& world,
                                            const std::optional<DiskRates>& rates) {
  if (!planned.options.offloads()) return std::nullopt;
  OffloadReport plan;
  plan.rank = world.worst_rank();
  plan.on_host = planned.device.separate_memory;
  plan.host_updates = planned.options.optimizer.offload.host_updates;
  plan.has_second_places = !plan.on_host && planned.recipe.checkpoint.saves();
  plan.max_steps = planned.recipe.training.max_steps;
  plan.rates = rates;
  const MemoryPlan& worst = world.offloaded_of(plan.rank);
  plan.at_rest = worst.at_rest();
  plan.file_bytes = file_bytes(worst, plan.has_second_places);
  plan.step = TrainingStep::disk_traffic(planned.options, planned.mesh, plan.rank);
  for (const WorldPlan::EqualRanks& group : world.equal_ranks()) {
    plan.all_file_bytes += group.num_ranks * file_bytes(group.offloaded, plan.has_second_places);
    const DiskTraffic step =
        TrainingStep::disk_traffic(planned.options, planned.mesh, group.first_rank);
    plan.all_step.read += group.num_ranks * step.read;
    plan.all_step.written += group.num_ranks * step.written;
  }
  return plan;
}

std::string offloaded_line(const MemoryPlan& offloaded, bool on_host) {
  return fmt::format("{}, each rank: {}", on_host ? "in the host's memory" : "on disk",
                     kinds_text(offloaded.at_rest()));
}

namespace {

std::string host_text(const OffloadReport& plan) {
  return fmt::format(
      "in the host's memory, rank {}: {}\na step of all ranks copies {} to GPUs and {} back{}\n",
      plan.rank, kinds_text(plan.at_rest), human_bytes(plan.all_step.read),
      human_bytes(plan.all_step.written), plan.host_updates ? "; the host's cores update" : "");
}

}  // namespace

std::string offload_text(const OffloadReport& plan) {
  if (plan.on_host) return host_text(plan);
  std::string text =
      fmt::format("on disk, rank {}: {}\nfile: {}{}; of all ranks {}\n", plan.rank,
                  kinds_text(plan.at_rest), human_bytes(plan.file_bytes),
                  plan.has_second_places ? ", with second places for what saves still need" : "",
                  human_bytes(plan.all_file_bytes));
  text += fmt::format("a step of all ranks reads {} and writes {}", human_bytes(plan.all_step.read),
                      human_bytes(plan.all_step.written));
  if (plan.max_steps > 0) {
    text += fmt::format("; the run writes {}", human_bytes(plan.max_steps * plan.all_step.written));
  }
  text += "\n";
  if (const auto seconds = plan.step_seconds()) {
    text += fmt::format("at {}/s read and {}/s written, this takes the drive {:.2f} s\n",
                        human_bytes(static_cast<std::int64_t>(plan.rates->read)),
                        human_bytes(static_cast<std::int64_t>(plan.rates->write)), *seconds);
  }
  return text;
}

}  // namespace sherd::engine
