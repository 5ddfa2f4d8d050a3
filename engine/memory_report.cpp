#include "engine/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "engine/byte_size.h"
#include "engine/plan_advice.h"
#include "engine/progress.h"
#include "engine/system_info.h"

namespace sherd::engine {
namespace {

constexpr int kNameColumn = 22;
constexpr int kColumn = 12;

std::string row(std::string_view name, const std::vector<std::string>& cells) {
  std::string line = fmt::format("{:<{}}", name, kNameColumn);
  for (const std::string& cell : cells) line += fmt::format("{:>{}}", cell, kColumn);
  return line + "\n";
}

std::string ranks_line(const WorldPlan& plan) {
  const int world_size = plan.world_size();
  if (world_size == 1) return "rank 0, the only one\n";
  return fmt::format(
      "rank {} of {}{}\n", plan.worst_rank(), world_size,
      plan.groups().size() == 1 ? "; all need the same" : ", the one that needs most");
}

}  // namespace

std::string memory_table(const WorldPlan& world) {
  const MemoryPlan& plan = world.worst();
  const ByteUnit unit = unit_for(plan.arena_bytes());
  std::vector<std::string> heads = {"at rest"};
  for (int phase = 0; phase < kNumPhases; ++phase) {
    heads.emplace_back(name_of(static_cast<Phase>(1u << phase)));
  }
  std::string table = ranks_line(world) + row(unit.name, heads);
  const BytesByCategory at_rest = plan.at_rest();
  for (int category = 0; category < kNumCategories; ++category) {
    if (plan.peak_by_category()[category] == 0) continue;
    std::vector<std::string> cells = {unit.text(at_rest[category])};
    for (const BytesByCategory& phase : plan.by_phase())
      cells.push_back(unit.text(phase[category]));
    table += row(readable_name(static_cast<Category>(category)), cells);
  }
  std::vector<std::string> live = {unit.text(sum(at_rest))}, idle = {""}, arena = {""};
  for (const BytesByCategory& phase : plan.by_phase()) {
    live.push_back(unit.text(sum(phase)));
    idle.push_back(unit.text(plan.arena_bytes() - sum(phase)));
    arena.push_back(unit.text(plan.arena_bytes()));
  }
  table += row("live", live) + row("gaps and idle", idle) + row("arena", arena);
  table +=
      fmt::format("peak: {} in {}; gaps {}; arena {}\n", human_bytes(plan.peak_bytes()),
                  name_of(plan.peak_phase()), human_bytes(plan.arena_bytes() - plan.peak_bytes()),
                  human_bytes(plan.arena_bytes()));
  return table;
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
  return {usable_memory_bytes(), true, "this machine"};
}

std::int64_t needed_bytes(const WorldPlan& plan, const DeviceLimit& limit) {
  return limit.shared ? plan.all_arenas_bytes() : plan.worst().arena_bytes();
}

std::string need_sentence(const Recipe& recipe, const WorldPlan& world, const DeviceLimit& limit) {
  const MemoryPlan& plan = world.worst();
  const ByteUnit unit = unit_for(plan.arena_bytes());
  const BytesByCategory& peak =
      plan.by_phase()[std::countr_zero(static_cast<unsigned>(plan.peak_phase()))];
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
  sentence += changes.empty()
                  ? " No change of stage, micro-batch, recompute, prefetch depth or ranks fits."
                  : fmt::format(" {} needs {}.", changes[0].summary(),
                                human_bytes(changes[0].needed_bytes));
  if (recipe.values.memory.on_exceed == OnExceed::kWarn) return sentence;
  throw UsageError("{}", sentence);
}

}  // namespace sherd::engine
