// Predicted and measured, side by side: what a run shows at its end.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "core/arena.h"
#include "core/byte_size.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "engine/plan/memory_report.h"

namespace sherd::engine {
namespace {

std::string_view phase_name(int index) {
  return name_of(static_cast<Phase>(1u << index));
}

std::string signed_text(const ByteUnit& unit, std::int64_t bytes) {
  return bytes == 0 ? "0" : fmt::format("{:+.1f}", unit.of(bytes));
}

// To the byte, since a difference of one byte matters here.
std::string difference_lines(int rank, const MemoryPlan& plan, const MeasuredMemory& measured) {
  std::string lines;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    const BytesByCategory &planned = plan.by_phase()[phase], &found = measured.by_phase[phase];
    if (sum(found) == 0 || found == planned) continue;
    lines += fmt::format("rank {}, {}:", rank, phase_name(phase));
    for (int i = 0; i < kNumCategories; ++i) {
      if (planned[i] == found[i]) continue;
      lines += fmt::format(" {} planned {} B, measured {} B;", name_of(static_cast<Category>(i)),
                           planned[i], found[i]);
    }
    lines.back() = '\n';
  }
  return lines;
}

std::string missing_phases_line(const MeasuredMemory& measured) {
  std::string names;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    if (sum(measured.by_phase[phase]) > 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", phase_name(phase));
  }
  return names.empty() ? "" : fmt::format("this run had no {}\n", names);
}

// GPU by GPU: arenas as the driver gave them, in whole pages, and what else is held there.
std::string gpu_lines(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                      const ByteUnit& unit) {
  struct Gpu {
    std::int64_t planned = 0, taken = 0, in_use = 0;
  };
  std::map<int, Gpu> gpus;
  std::int64_t host_planned = 0, host_taken = 0;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    Gpu& gpu = gpus[ranks[rank].gpu];
    gpu.planned += plan.of(rank).arena_bytes();
    gpu.taken += ranks[rank].taken_bytes;
    gpu.in_use = std::max(gpu.in_use, ranks[rank].gpu_bytes_in_use);
    host_planned += plan.host_of(rank).arena_bytes();
    host_taken += ranks[rank].host_bytes;
  }
  std::string text;
  for (const auto& [index, gpu] : gpus) {
    text += fmt::format(
        "GPU {}: arenas {} {} planned, {} taken ({} B to whole pages); {} in use, of "
        "it {} outside of the plan: CUDA context, libraries, other processes\n",
        index, unit.text(gpu.planned), unit.name, unit.text(gpu.taken), gpu.taken - gpu.planned,
        unit.text(gpu.in_use), unit.text(gpu.in_use - gpu.taken));
  }
  return text + fmt::format("page-locked host memory: {} {} planned, {} taken\n",
                            unit.text(host_planned), unit.name, unit.text(host_taken));
}

}  // namespace

MeasuredMemory measured_memory(const Allocator& memory) {
  const auto* arena = dynamic_cast<const Arena*>(&memory);
  return {memory.peak_bytes(), memory.peak_by_category(), memory.peak_by_phase(),
          arena ? arena->resident_bytes() : 0, arena ? arena->taken_bytes() : 0};
}

MeasuredMemory measured_memory(const sharding::Rank& rank) {
  MeasuredMemory measured = measured_memory(*rank.memory);
  if (rank.host_memory) measured.host_bytes = measured_memory(*rank.host_memory).taken_bytes;
  if (rank.compute().device() == DeviceKind::kCuda) {
    measured.gpu = cuda_stream(rank.compute()).cuda().device;
    measured.gpu_bytes_in_use = cuda_bytes_in_use(measured.gpu);
  }
  return measured;
}

bool as_planned(const MemoryPlan& plan, const MeasuredMemory& measured) {
  for (int phase = 0; phase < kNumPhases; ++phase) {
    const BytesByCategory& found = measured.by_phase[phase];
    if (sum(found) > 0 && found != plan.by_phase()[phase]) return false;
  }
  return true;
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
  SHERD_CHECK(std::ssize(ranks) == plan.world_size(), "{} ranks measured of {}", ranks.size(),
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
  std::int64_t arenas_resident = 0;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    equal += as_planned(plan.of(rank), ranks[rank]);
    text += difference_lines(rank, plan.of(rank), ranks[rank]);
    arenas_resident += ranks[rank].resident_bytes;
  }
  text += missing_phases_line(measured);
  text += fmt::format("{} of {} ranks as planned in every phase, to the byte\n", equal,
                      plan.world_size());
  if (measured.gpu >= 0) return text + gpu_lines(plan, ranks, unit);
  text += row("all arenas", plan.all_arenas_bytes(), arenas_resident);
  return text +
         fmt::format("{:<22}{:>12}{:>12}   libraries, heap, page tables\n", "outside of the plan",
                     "", unit.text(resident_bytes - arenas_resident)) +
         fmt::format("{:<22}{:>12}{:>12}\n", "process, resident", "", unit.text(resident_bytes));
}

}  // namespace sherd::engine
