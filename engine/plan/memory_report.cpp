#include "engine/plan/memory_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/byte_size.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "core/human_text.h"
#include "engine/launch/system_info.h"
#include "engine/plan/advice.h"

namespace sherd::engine {
namespace {

using Cells = std::vector<std::string>;  // of a row, its name first

// As narrow as its cells allow: 80 columns hold sizes of up to seven characters.
std::string aligned(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(rows[0].size(), 0);
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const Cells& row : rows) {
    table += fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i)
      table += fmt::format("  {:>{}}", row[i], widths[i]);
    table += "\n";
  }
  return table;
}

}  // namespace

std::string worst_rank_text(const WorldPlan& plan) {
  const int world_size = plan.world_size();
  if (world_size == 1) return "rank 0, the only one";
  return fmt::format(
      "rank {} of {}{}", plan.worst_rank(), world_size,
      plan.equal_ranks().size() == 1 ? "; all need the same" : ", the one that needs most");
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

namespace {

std::string table_of(const MemoryPlan& plan, const std::string& title) {
  const ByteUnit unit = unit_for(plan.arena_bytes());
  std::vector<Cells> rows = {{std::string(unit.name)}};
  for (const std::string& column : memory_columns()) rows[0].push_back(column);
  for (const MemoryRow& row : memory_rows(plan)) {
    Cells& cells = rows.emplace_back(Cells{row.name});
    for (const auto& bytes : row.bytes) cells.push_back(bytes ? unit.text(*bytes) : "");
  }
  const std::string table = title + "\n" + aligned(rows);
  return table + fmt::format("peak: {} in {}; gaps {}; arena {}\n", human_bytes(plan.peak_bytes()),
                             name_of(plan.peak_phase()),
                             human_bytes(plan.arena_bytes() - plan.peak_bytes()),
                             human_bytes(plan.arena_bytes()));
}

std::string title_of(const WorldPlan& world, int rank, const char* kind) {
  return fmt::format("{} {} of {} ranks, the one that needs most", kind, rank, world.world_size());
}

}  // namespace

std::string memory_table(const WorldPlan& world) {
  if (world.worst_server() < 0) return table_of(world.worst(), worst_rank_text(world));
  const int worker = world.worst_worker(), server = world.worst_server();
  return table_of(world.of(worker), title_of(world, worker, "workers: rank")) + "\n" +
         table_of(world.of(server), title_of(world, server, "parameter servers: rank"));
}

std::string readable_name(Category category) {
  std::string name(name_of(category));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::int64_t library_reserve_bytes(int zero_ranks, bool share_device,
                                   const std::vector<int>& further) {
  constexpr std::int64_t kMiB = 1 << 20;
  std::int64_t bytes = 1024 * kMiB;  // cuBLASLt, cuDNN
  if (share_device) return bytes;
  const auto add_communicator = [&](int ranks) {
    constexpr int kMostPeers = 7;  // of one node
    if (ranks > 1) bytes += 256 * kMiB + 64 * kMiB * std::min(ranks - 1, kMostPeers);
  };
  add_communicator(zero_ranks);  // gathers
  add_communicator(zero_ranks);  // reductions
  for (const int ranks : further) add_communicator(ranks);
  return bytes;
}

namespace {

// Those that share the training state.
int zero_ranks_of(const Recipe& recipe) {
  return static_cast<int>(recipe.parallelism.data_parallel_shard_degree *
                          recipe.parallelism.context_parallel_degree);
}

// The sizes of a rank's groups other than those for gathers and reductions. If these don't contain
// all ranks, exchanges of all ranks have their own group, and replicas have one, or two if they
// divide the optimizer. A pipeline rank has one per direction for each end of its parts, and for a
// tied matrix. A tensor rank has one for its sums, one with the ranks of the same key/value heads,
// and one for matrices that the optimizer updates whole. A context rank has one, and in a ring one with each neighbour.
// An expert rank has one for rows, and two for its experts' gathers and reductions.
std::vector<int> further_groups_of(const Recipe& recipe) {
  const auto& degrees = recipe.parallelism;
  std::vector<int> groups;
  const auto replicas = static_cast<int>(degrees.data_parallel_replicate_degree);
  if (zero_ranks_of(recipe) < recipe.world_size()) {
    groups.push_back(static_cast<int>(recipe.world_size()));
  }
  if (replicas > 1) groups.push_back(replicas);
  if (replicas > 1 && recipe.zero_optimization.shard_optimizer_over_replicas) {
    groups.push_back(replicas);
  }
  if (degrees.pipeline_parallel_degree > 1) {
    const auto chunks = static_cast<int>(degrees.pipeline_chunks_per_rank);
    groups.insert(groups.end(),
                  static_cast<std::size_t>(4 * chunks + (recipe.model.tie_embeddings ? 1 : 0)), 2);
  }
  const auto tensor = static_cast<int>(degrees.tensor_parallel_degree);
  const auto context = static_cast<int>(degrees.context_parallel_degree);
  const auto kv_heads = static_cast<int>(recipe.model.num_kv_heads);
  if (tensor > 1) groups.push_back(tensor);
  if (kv_heads > 0 && tensor > kv_heads) groups.push_back(tensor / kv_heads);
  const optim::OptimizerType type = recipe.optimizer.type;
  if (tensor > 1 && (type == optim::OptimizerType::kMuon || type == optim::OptimizerType::kDion)) {
    groups.push_back(tensor);
  }
  if (context > 1) groups.push_back(context);
  const auto expert = static_cast<int>(degrees.expert_parallel_degree);
  if (expert > 1)
    groups.insert(groups.end(),
                  {expert, zero_ranks_of(recipe) / expert, zero_ranks_of(recipe) / expert});
  if (context > 1 && degrees.context_parallel_method == ContextMethod::kRing) {
    groups.insert(groups.end(), 2, 2);
  }
  return groups;
}

}  // namespace

DeviceLimit device_limit(const Recipe& recipe, std::optional<std::int64_t> device_memory,
                         std::vector<int> gpus) {
  const std::string& of_server = recipe.memory.server_memory;
  const std::int64_t server_bytes = of_server.empty() ? 0 : parse_bytes(of_server);
  const auto each = [&](std::int64_t bytes, const char* origin) {
    return DeviceLimit{
        .bytes = bytes, .shared = false, .origin = origin, .server_bytes = server_bytes};
  };
  if (device_memory) return each(*device_memory, "--device-memory");
  const std::string& size = recipe.memory.device_memory;
  if (!size.empty()) return each(parse_bytes(size), "memory.device_memory");
  if (device_traits(recipe).kind == DeviceKind::kCpu)
    return {.bytes = usable_memory_bytes(),
            .shared = true,
            .origin = "this machine",
            .server_bytes = server_bytes};
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) {
    throw UsageError(
        "run.device is cuda, but {}, so a GPU's memory is unknown: add --device-memory 80GB, "
        "or "
        "memory.device_memory in the recipe.",
        system.problem);
  }
  const auto world_size = static_cast<int>(recipe.world_size());
  const bool share = recipe.run.share_device;
  const std::int64_t reserve =
      library_reserve_bytes(zero_ranks_of(recipe), share, further_groups_of(recipe));
  if (gpus.empty()) {
    const int here = std::min(world_size, static_cast<int>(system.devices.size()));
    for (int gpu = 0; gpu < (share ? 1 : here); ++gpu) gpus.push_back(gpu);
  }
  std::int64_t least = INT64_MAX;
  for (const int gpu : gpus) least = std::min(least, cuda_bytes_free(gpu));
  return {
      (least - reserve) / (share ? world_size : 1), false,
      fmt::format("what {} free, less {} for libraries{}",
                  share || gpus.size() == 1 ? "the GPU has" : "the fullest of the ranks' GPUs has",
                  human_bytes(reserve), share ? ", for each of the ranks that share it" : "")};
}

namespace {

// The rank whose memory must fit into `limit.bytes`.
const MemoryPlan& judged(const WorldPlan& plan, const DeviceLimit& limit) {
  const bool apart = limit.shared ? limit.num_ranks > 0 : limit.server_bytes > 0;
  if (!apart || plan.worst_server() < 0) return plan.worst();
  return plan.of(plan.is_server(limit.first_rank) ? plan.worst_server() : plan.worst_worker());
}

bool servers_fit(const WorldPlan& plan, const DeviceLimit& limit) {
  return limit.server_bytes == 0 || plan.worst_server() < 0 ||
         plan.of(plan.worst_server()).arena_bytes() <= limit.server_bytes;
}

}  // namespace

std::int64_t needed_bytes(const WorldPlan& plan, const DeviceLimit& limit) {
  const std::int64_t worst = judged(plan, limit).arena_bytes();
  if (!limit.shared) return worst;
  const bool whole_world = limit.num_ranks == 0 || limit.num_ranks == plan.world_size();
  return whole_world ? plan.all_arenas_bytes() : worst * limit.num_ranks;
}

bool fits(const WorldPlan& plan, const DeviceLimit& limit) {
  return needed_bytes(plan, limit) <= limit.bytes && servers_fit(plan, limit);
}

bool may_fit(const WorldPlan& first_ranks, const DeviceLimit& limit) {
  if (limit.num_ranks > 0 || limit.server_bytes > 0) return true;
  return (limit.shared ? first_ranks.all_arenas_bytes() : first_ranks.worst().arena_bytes()) <=
         limit.bytes;
}

std::optional<std::string> server_problem(const Recipe& recipe, const WorldPlan& plan,
                                          const DeviceLimit& limit) {
  if (servers_fit(plan, limit)) return std::nullopt;
  const std::int64_t needed = plan.of(plan.worst_server()).arena_bytes();
  return fmt::format(
      "a parameter server, of {}, needs {}; memory.server_memory is {}, {} too little. Use more "
      "parallelism.parameter_servers.",
      recipe.parallelism.parameter_servers, human_bytes(needed), human_bytes(limit.server_bytes),
      human_bytes(needed - limit.server_bytes));
}

std::string need_sentence(const Recipe& recipe, const WorldPlan& world, const DeviceLimit& limit) {
  const MemoryPlan& plan = judged(world, limit);
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
    sentence += fmt::format(", {} together", human_bytes(needed_bytes(world, limit)));
  }
  return sentence;
}

std::optional<std::string> check_fits(const ResolvedRecipe& recipe, const WorldPlan& plan,
                                      const DeviceLimit& limit) {
  if (auto problem = server_problem(recipe.values, plan, limit)) {
    if (recipe.values.memory.on_exceed == OnExceed::kWarn) return problem;
    throw UsageError("{}", *problem);
  }
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
