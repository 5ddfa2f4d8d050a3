#include "engine/memory_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/cuda_device.h"
#include "core/error.h"
#include "engine/byte_size.h"
#include "engine/plan_advice.h"
#include "engine/progress.h"
#include "engine/system_info.h"

namespace sherd::engine {
namespace {

constexpr int kNameColumn = 22;
constexpr int kColumn = 12;

std::string text_row(std::string_view name, const std::vector<std::string>& cells) {
  std::string line = fmt::format("{:<{}}", name, kNameColumn);
  for (const std::string& cell : cells) line += fmt::format("{:>{}}", cell, kColumn);
  return line + "\n";
}

}  // namespace

std::string worst_rank_text(const WorldPlan& plan) {
  const int world_size = plan.world_size();
  if (world_size == 1) return "rank 0, the only one";
  return fmt::format(
      "rank {} of {}{}", plan.worst_rank(), world_size,
      plan.groups().size() == 1 ? "; all need the same" : ", the one that needs most");
}

std::vector<std::string> memory_columns() {
  std::vector<std::string> columns = {"at rest"};
  for (int phase = 0; phase < kNumPhases; ++phase) {
    columns.emplace_back(name_of(static_cast<Phase>(1u << phase)));
  }
  return columns;
}

std::vector<MemoryRow> memory_rows(const MemoryPlan& plan) {
  std::vector<MemoryRow> rows;
  const BytesByCategory at_rest = plan.at_rest(), peak = plan.peak_by_category();
  for (int category = 0; category < kNumCategories; ++category) {
    if (peak[category] == 0) continue;
    MemoryRow& row =
        rows.emplace_back(readable_name(static_cast<Category>(category)), at_rest[category]);
    for (const BytesByCategory& phase : plan.by_phase()) row.bytes.emplace_back(phase[category]);
  }
  MemoryRow live("live", sum(at_rest)), idle("gaps and idle", {}), arena("arena", {});
  for (const BytesByCategory& phase : plan.by_phase()) {
    live.bytes.emplace_back(sum(phase));
    idle.bytes.emplace_back(plan.arena_bytes() - sum(phase));
    arena.bytes.emplace_back(plan.arena_bytes());
  }
  rows.insert(rows.end(), {live, idle, arena});
  return rows;
}

std::string memory_table(const WorldPlan& world) {
  const MemoryPlan& plan = world.worst();
  const ByteUnit unit = unit_for(plan.arena_bytes());
  std::string table = worst_rank_text(world) + "\n" + text_row(unit.name, memory_columns());
  for (const MemoryRow& row : memory_rows(plan)) {
    std::vector<std::string> cells;
    for (const auto& bytes : row.bytes) cells.push_back(bytes ? unit.text(*bytes) : "");
    table += text_row(row.name, cells);
  }
  return table + fmt::format("peak: {} in {}; gaps {}; arena {}\n", human_bytes(plan.peak_bytes()),
                             name_of(plan.peak_phase()),
                             human_bytes(plan.arena_bytes() - plan.peak_bytes()),
                             human_bytes(plan.arena_bytes()));
}

std::string readable_name(Category category) {
  std::string name(name_of(category));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

DeviceLimit device_limit(const Recipe& recipe, std::optional<std::int64_t> device_memory) {
  if (device_memory) return {*device_memory, false, "--device-memory"};
  const std::string& size = recipe.memory.device_memory;
  if (!size.empty()) return {parse_bytes(size), false, "memory.device_memory"};
  if (device_kind(recipe) == DeviceKind::kCpu) return {usable_memory_bytes(), true, "this machine"};
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) {
    throw UsageError(
        "run.device is cuda, but {}, so what a GPU has can't be asked: say --device-memory 80GB, "
        "or "
        "memory.device_memory in the recipe.",
        system.problem);
  }
  // What cuBLASLt, cuDNN and NCCL load after the arena; a guess until it is measured.
  constexpr std::int64_t kForLibraries = std::int64_t{1} << 30;
  if (recipe.run.share_device) {
    return {(system.devices[0].free_bytes - kForLibraries) / recipe.world_size(), false,
            "what the GPU has free, less 1 GiB for libraries, for each of the ranks that share it"};
  }
  std::int64_t least = INT64_MAX;
  for (const CudaDevice& gpu : system.devices) least = std::min(least, gpu.free_bytes);
  return {least - kForLibraries, false,
          "what this machine's GPU has free, less 1 GiB for libraries"};
}

std::int64_t needed_bytes(const WorldPlan& plan, const DeviceLimit& limit) {
  return limit.shared ? plan.all_arenas_bytes() : plan.worst().arena_bytes();
}

std::string need_sentence(const Recipe& recipe, const WorldPlan& world, const DeviceLimit& limit) {
  const MemoryPlan& plan = world.worst();
  const ByteUnit unit = unit_for(plan.arena_bytes());
  const BytesByCategory& peak = plan.by_phase()[phase_index(plan.peak_phase())];
  std::string parts;
  for (int category = 0; category < kNumCategories; ++category) {
    if (unit.of(peak[category]) < 0.05) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ",
                         readable_name(static_cast<Category>(category)), unit.text(peak[category]));
  }
  std::string sentence =
      fmt::format("stage {} on {} rank{} needs {} {} per rank ({})", recipe.zero_optimization.stage,
                  world.world_size(), world.world_size() == 1 ? "" : "s",
                  unit.text(plan.arena_bytes()), unit.name, parts);
  if (limit.shared && world.world_size() > 1) {
    sentence += fmt::format(", {} together", human_bytes(world.all_arenas_bytes()));
  }
  return sentence;
}

std::optional<std::string> check_fits(const ResolvedRecipe& recipe, const WorldPlan& plan,
                                      const DeviceLimit& limit) {
  const std::int64_t needed = needed_bytes(plan, limit);
  if (needed <= limit.bytes) return std::nullopt;
  std::string sentence =
      fmt::format("{}; {} has {}, {} too little.", need_sentence(recipe.values, plan, limit),
                  limit.shared ? "this machine" : "the device", human_bytes(limit.bytes),
                  human_bytes(needed - limit.bytes));
  const std::vector<Change> changes = cheapest_changes(recipe, limit);
  sentence +=
      changes.empty()
          ? " No change of stage, micro-batch, recompute, prefetch depth, staging or ranks fits."
          : fmt::format(" {} needs {}.", changes[0].summary(),
                        human_bytes(changes[0].needed_bytes));
  if (recipe.values.memory.on_exceed == OnExceed::kWarn) return sentence;
  throw UsageError("{}", sentence);
}

}  // namespace sherd::engine
