/// What of a step's traffic stays on a machine, and what crosses to others, where ranks are processes over MPI
/// (sharding/processes/mpi.h): ranks 0 to m - 1 on the first machine, and so on.
///
/// Everything goes straight from rank to rank, but for gathers: with `parallelism.hierarchical`, one rank of each other
/// machine takes a slice and passes it on there; and with `sum_order: free` one rank adds up what its machine has of a
/// slice, where each machine has as many ranks of the group, and replicas are the only groups of the batch.
///
/// Source   sharding/comm/machine_relays.h, whose ways a run goes.
#pragma once

#include <string>
#include <vector>

#include "core/link_bytes.h"
#include "engine/plan/planned_recipe.h"
#include "sharding/mesh/traffic.h"

namespace sherd::engine {

struct MachineTraffic {
  int ranks_per_machine = 0;
  bool passed_on = false;          ///< gathers
  bool added_on_machines = false;  ///< gradients, before they cross
  struct Row {
    std::string callers;  ///< "shard", "pipeline neighbours", "all ranks"
    std::string what;     ///< "parameters, all_gather"
    LinkBytes bytes;
  };
  /// Of the machine that sends most to others, by all of its ranks in a step.
  int machine = 0;
  std::vector<Row> rows;
  LinkBytes sum;
  LinkBytes all;  ///< of all machines together
};

/// Errors   UsageError: machines that don't have equally many ranks; a GPU, where NCCL chooses the ways.
MachineTraffic machine_traffic(const PlannedRecipe& planned, int ranks_per_machine);
std::string machine_traffic_text(const MachineTraffic& traffic);

}  // namespace sherd::engine
