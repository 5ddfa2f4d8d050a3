#include "engine/plan/machine_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/byte_size.h"
#include "core/error.h"
#include "engine/train/training_step.h"
#include "optim/optimizer.h"
#include "sharding/comm/machine_relays.h"

namespace sherd::engine {
namespace {

using sharding::Collective;

/// A rank's peers in a group, counted.
struct Peers {
  std::int64_t neighbours = 0, elsewhere = 0;
  /// Slices that the rank sends in a gather that is passed on.
  std::int64_t gathered_within = 0, gathered_across = 0;
  /// Owners on other machines for which it adds its machine's part of a sum, if machines have
  /// equally many ranks.
  std::int64_t owners = 0;
};

Peers peers_of(const std::vector<int>& ranks, int rank, int ranks_per_machine) {
  const sharding::Group group{
      .name = {},
      .ranks = ranks,
      .index = static_cast<int>(std::ranges::lower_bound(ranks, rank) - ranks.begin())};
  std::vector<int> machines(static_cast<std::size_t>(ranks.back() / ranks_per_machine + 1));
  std::iota(machines.begin(), machines.end(), 0);
  const sharding::MachineRelays relays(group, ranks_per_machine, machines);
  const int own = group.index;
  Peers peers;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == own) continue;
    (relays.are_neighbours(own, peer) ? peers.neighbours : peers.elsewhere) += 1;
    if (relays.between(own, peer) == peer) {
      (relays.are_neighbours(own, peer) ? peers.gathered_within : peers.gathered_across) += 1;
    }
  }
  if (!relays.any()) return peers;
  for (int owner = 0; owner < group.size(); ++owner) {
    if (relays.are_neighbours(owner, own) || relays.between(owner, own) != own) continue;
    peers.gathered_within += peers.neighbours;
    if (relays.even()) ++peers.owners;
  }
  return peers;
}

// Divides a line's bytes: each peer gets the same, unless they are passed on or added on the way.
// An all-reduce is a reduce-scatter and an all-gather.
LinkBytes bytes_of(const sharding::Sent& sent, const Peers& peers, const MachineTraffic& how) {
  const std::int64_t others = peers.neighbours + peers.elsewhere;
  if (others == 0) return {};
  const bool both = sent.collective == Collective::kAllReduce;
  const std::int64_t slice = sent.bytes / others / (both ? 2 : 1);
  const LinkBytes direct{slice * peers.neighbours, slice * peers.elsewhere};
  const auto gathered = [&] {
    if (!how.passed_on) return direct;
    return LinkBytes{slice * peers.gathered_within, slice * peers.gathered_across};
  };
  const auto reduced = [&] {
    if (!how.added_on_machines || peers.owners == 0) return direct;
    const auto size = static_cast<std::int64_t>(size_of(sent.dtype));
    return LinkBytes{slice * (others - peers.owners), slice / size * 4 * peers.owners};
  };
  if (sent.collective == Collective::kAllGather) return gathered();
  if (sent.collective == Collective::kReduceScatter) return reduced();
  if (!both) return direct;
  LinkBytes sum = gathered();
  return sum += reduced();
}

// Two neighbours differ in one coordinate.
std::string neighbours_text(const sharding::Mesh& mesh, int rank, int peer) {
  for (const sharding::MeshAxis& axis : mesh.axes()) {
    if (mesh.coordinate(rank, axis.name) != mesh.coordinate(peer, axis.name)) {
      return axis.name + " neighbours";
    }
  }
  return "itself";
}

std::string callers_text(const sharding::Mesh& mesh, int rank, const sharding::Callers& callers) {
  if (callers.peer) return neighbours_text(mesh, rank, *callers.peer);
  std::string text;
  for (const sharding::MeshAxis& axis : mesh.axes()) {
    if (axis.degree == 1 || !callers.axes.contains(axis.name)) continue;
    text += (text.empty() ? "" : ", ") + axis.name;
  }
  const bool all = callers.count == mesh.world_size();
  return all && text.find(',') != std::string::npos ? "all ranks" : text;
}

/// By callers, and what they send.
using Rows = std::map<std::pair<std::string, std::string>, LinkBytes>;

/// What each rank sends, and to how many peers of which kind. Most ranks are like others, which are
/// remembered.
class RanksOfMachines {
 public:
  RanksOfMachines(const TrainingOptions& options, const sharding::Mesh& mesh,
                  const MachineTraffic& how)
      : options_(options),
        mesh_(mesh),
        how_(how),
        uneven_(optim::descriptor_of(options.optimizer.type).uneven_numels != nullptr) {}

  Rows of_machine(int first_rank) {
    Rows rows;
    for (int rank = first_rank; rank < first_rank + how_.ranks_per_machine; ++rank) {
      add(rank, rows);
    }
    return rows;
  }

 private:
  struct RankTraffic {
    int rank = 0;
    std::vector<sharding::Sent> sent;
  };

  // Ranks with the same place among those that divide the model send the same, each to its own
  // peers.
  const RankTraffic& traffic_of(int rank) {
    std::vector<int> place = {uneven_ ? rank : 0};
    for (const auto axis :
         {sharding::kPipelineAxis, sharding::kContextAxis, sharding::kTensorAxis}) {
      place.push_back(mesh_.coordinate(rank, axis));
    }
    const auto [at, is_new] = traffic_.try_emplace(std::move(place));
    if (is_new) {
      at->second = {rank, TrainingStep::traffic(options_, mesh_, rank, DeviceKind::kCpu).sent()};
    }
    return at->second;
  }

  void add(int rank, Rows& rows) {
    const RankTraffic& alike = traffic_of(rank);
    std::vector<std::pair<sharding::Callers, Peers>> known;
    for (const sharding::Sent& sent : alike.sent) {
      sharding::Callers callers = sent.callers;
      if (callers.count == 1) continue;
      if (callers.peer) *callers.peer += rank - alike.rank;
      auto found = std::ranges::find(known, callers, &decltype(known)::value_type::first);
      if (found == known.end()) {
        known.emplace_back(callers, peers(callers.ranks(mesh_, rank), rank));
        found = known.end() - 1;
      }
      rows[{callers_text(mesh_, rank, callers),
            fmt::format("{}, {}", sent.label, sharding::name_of(sent.collective))}] +=
          bytes_of(sent, found->second, how_);
    }
  }

  // It depends on who of the group shares machines, not on which machines these are.
  const Peers& peers(const std::vector<int>& ranks, int rank) {
    std::vector<int> key;
    for (const int member : ranks) {
      key.push_back(member / how_.ranks_per_machine - ranks[0] / how_.ranks_per_machine);
    }
    key.push_back(static_cast<int>(std::ranges::lower_bound(ranks, rank) - ranks.begin()));
    const auto [at, is_new] = peers_.try_emplace(std::move(key));
    if (is_new) at->second = peers_of(ranks, rank, how_.ranks_per_machine);
    return at->second;
  }

  const TrainingOptions& options_;
  const sharding::Mesh& mesh_;
  const MachineTraffic& how_;
  const bool uneven_;
  std::map<std::vector<int>, RankTraffic> traffic_;
  std::map<std::vector<int>, Peers> peers_;
};

LinkBytes sum_of(const Rows& rows) {
  LinkBytes sum;
  for (const auto& [key, bytes] : rows) sum += bytes;
  return sum;
}

// Whether all machines at one place in the pipeline have the same part of each group. They do if
// the inner axes' groups divide machines evenly, or the reverse. State that only some ranks own
// makes them differ.
bool machines_are_alike(const PlannedRecipe& planned, int ranks_per_machine) {
  if (optim::descriptor_of(planned.options.optimizer.type).uneven_numels != nullptr) return false;
  int inner = 1;
  for (auto axis = planned.mesh.axes().rbegin(); axis != planned.mesh.axes().rend(); ++axis) {
    inner *= axis->degree;
    if (inner % ranks_per_machine != 0 && ranks_per_machine % inner != 0) return false;
  }
  return true;
}

}  // namespace

bool passes_gathers_on(const Recipe& recipe) {
  return recipe.parallelism.hierarchical != HierarchicalChoice::kOff;
}

bool adds_on_machines(const Recipe& recipe) {
  return passes_gathers_on(recipe) && recipe.parallelism.sum_order == SumOrderChoice::kFree &&
         recipe.parallelism.batch_groups == recipe.parallelism.data_parallel_replicate_degree;
}

MachineTraffic machine_traffic(const PlannedRecipe& planned, int ranks_per_machine) {
  const Recipe& recipe = planned.recipe;
  const auto world = static_cast<int>(recipe.world_size());
  if (ranks_per_machine < 1 || world % ranks_per_machine != 0) {
    int nearest = std::clamp(ranks_per_machine, 1, world);
    while (world % nearest != 0) --nearest;
    throw UsageError(
        "--ranks-per-machine {}: {} ranks can't be divided evenly among such machines. {} would "
        "work.",
        ranks_per_machine, world, nearest);
  }
  if (recipe.run.device == DeviceChoice::kCuda) {
    throw UsageError(
        "--ranks-per-machine is for CPUs: between GPUs NCCL chooses the routes. Leave it out.");
  }
  if (recipe.parallelism.parameter_servers > 0) {
    throw UsageError(
        "--ranks-per-machine: of parameter servers, `sherd plan` shows what each rank sends; leave "
        "it out.");
  }
  MachineTraffic traffic{.ranks_per_machine = ranks_per_machine,
                         .passed_on = passes_gathers_on(recipe),
                         .added_on_machines = adds_on_machines(recipe),
                         .rows = {},
                         .sum = {},
                         .all = {}};
  RanksOfMachines ranks(planned.options, planned.mesh, traffic);
  const int step =
      machines_are_alike(planned, ranks_per_machine)
          ? std::max(ranks_per_machine, world / planned.mesh.degree(sharding::kPipelineAxis))
          : ranks_per_machine;
  Rows most;
  for (int first = 0; first < world; first += step) {
    Rows rows = ranks.of_machine(first);
    const LinkBytes sum = sum_of(rows);
    for (int machine = 0; machine < step / ranks_per_machine; ++machine) {
      if (__builtin_add_overflow(traffic.all.within, sum.within, &traffic.all.within) ||
          __builtin_add_overflow(traffic.all.across, sum.across, &traffic.all.across)) {
        throw UsageError("all machines together send more bytes than 64 bits can count.");
      }
    }
    if (first == 0 || sum.across > sum_of(most).across) {
      most = std::move(rows);
      traffic.machine = first / ranks_per_machine;
    }
  }
  for (const auto& [key, bytes] : most) traffic.rows.push_back({key.first, key.second, bytes});
  traffic.sum = sum_of(most);
  return traffic;
}

std::string machine_traffic_text(const MachineTraffic& traffic) {
  const ByteUnit unit = unit_for(traffic.sum.total());
  std::string text = fmt::format(
      "sent in a step by the {} of one machine{}{}\n{:<24}{:>16}{:>18}\n",
      traffic.ranks_per_machine == 1 ? "rank" : fmt::format("{} ranks", traffic.ranks_per_machine),
      traffic.passed_on ? ", gathers passed on" : "",
      traffic.added_on_machines ? ", sums formed first" : "", "among",
      fmt::format("within, {}", unit.name), fmt::format("to others, {}", unit.name));
  const auto row = [&](std::string_view callers, const LinkBytes& bytes) {
    text += fmt::format("{:<24}{:>16}{:>18}\n", callers, unit.text(bytes.within),
                        unit.text(bytes.across));
  };
  std::map<std::string, LinkBytes> by_callers;
  for (const MachineTraffic::Row& each : traffic.rows) by_callers[each.callers] += each.bytes;
  for (const auto& [callers, bytes] : by_callers) row(callers, bytes);
  row("sum", traffic.sum);
  row("all machines", traffic.all);
  return text;
}

}  // namespace sherd::engine
