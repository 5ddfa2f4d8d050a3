// Predicted and measured, side by side: what a run shows at its end.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "engine/byte_size.h"
#include "engine/memory_report.h"

namespace sherd::engine {
namespace {

std::string signed_text(const ByteUnit& unit, std::int64_t bytes) {
  return bytes == 0 ? "0" : fmt::format("{:+.1f}", unit.of(bytes));
}

bool as_planned(const MemoryPlan& plan, const MeasuredMemory& measured) {
  return measured.peak_bytes == plan.peak_bytes() &&
         measured.peak_by_category == plan.peak_by_category();
}

// Exact below a unit's tenth, since a difference of a byte matters here.
std::string difference_line(int rank, const MemoryPlan& plan, const MeasuredMemory& measured) {
  std::string line = fmt::format("rank {}: planned {} B, measured {} B", rank, plan.peak_bytes(),
                                 measured.peak_bytes);
  const BytesByCategory planned = plan.peak_by_category();
  for (int i = 0; i < kNumCategories; ++i) {
    if (planned[i] == measured.peak_by_category[i]) continue;
    line += fmt::format("; {} planned {} B, measured {} B", name_of(static_cast<Category>(i)),
                        planned[i], measured.peak_by_category[i]);
  }
  return line + "\n";
}

}  // namespace

MeasuredMemory measured_memory(const Allocator& memory) {
  return {memory.peak_bytes(), memory.peak_by_category(), memory.peak_by_phase()};
}

std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::atoll(line.c_str() + 6);
  }
  return 0;
}

std::string memory_comparison(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                              std::int64_t resident_bytes) {
  CHECK(std::ssize(ranks) == plan.world_size(), "{} ranks measured of {}", ranks.size(),
        plan.world_size());
  const MemoryPlan& worst = plan.worst();
  const MeasuredMemory& measured = ranks[plan.worst_rank()];
  const BytesByCategory planned = worst.peak_by_category();
  const ByteUnit unit = unit_for(std::max(plan.all_arenas_bytes(), resident_bytes));
  const auto row = [&](std::string_view name, std::int64_t predicted, std::int64_t found) {
    return fmt::format("{:<22}{:>12}{:>12}{:>12}\n", name, unit.text(predicted), unit.text(found),
                       signed_text(unit, found - predicted));
  };
  std::string text = fmt::format("{:<22}{:>12}{:>12}{:>12}\n",
                                 fmt::format("rank {}, peak, {}", plan.worst_rank(), unit.name),
                                 "predicted", "measured", "difference");
  for (int i = 0; i < kNumCategories; ++i) {
    if (planned[i] == 0 && measured.peak_by_category[i] == 0) continue;
    text += row(readable_name(static_cast<Category>(i)), planned[i], measured.peak_by_category[i]);
  }
  text += row("all at once", worst.peak_bytes(), measured.peak_bytes);
  int equal = 0;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    equal += as_planned(plan.of(rank), ranks[rank]);
    if (!as_planned(plan.of(rank), ranks[rank])) {
      text += difference_line(rank, plan.of(rank), ranks[rank]);
    }
  }
  text += fmt::format("{} of {} ranks as planned, to the byte\n", equal, plan.world_size());
  text += row("process, resident", plan.all_arenas_bytes(), resident_bytes);
  return text + "(what a process holds outside of the plan: libraries, heap, page tables)\n";
}

}  // namespace sherd::engine
