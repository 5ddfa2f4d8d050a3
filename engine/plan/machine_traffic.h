/// Which part of a step's traffic stays on a machine and which crosses to others, for ranks in
/// processes over MPI (sharding/processes/mpi.h). Ranks 0 to m - 1 are on the first machine, and so
/// on.
///
/// Data is sent directly from rank to rank, with two exceptions. In all-gathers with
/// `parallelism.hierarchical`, one rank of each other machine receives a slice and passes it on
/// there. With `sum_order: free`, one rank adds its machine's parts of a slice, if each machine has
/// equally many ranks of the group and replicas are the only groups of the batch.
///
/// Source   sharding/comm/machine_relays.h, whose routes a run uses.
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
  /// For the machine that sends most to others: sent by all of its ranks in a step.
  int machine = 0;
  std::vector<Row> rows;
  LinkBytes sum;
  LinkBytes all;  ///< by all machines together
};

/// What `passed_on` and `added_on_machines` are for a recipe.
bool passes_gathers_on(const Recipe& recipe);
bool adds_on_machines(const Recipe& recipe);

/// Errors   UsageError: machines with unequal numbers of ranks; GPUs, where NCCL chooses the
///          routes.
MachineTraffic machine_traffic(const PlannedRecipe& planned, int ranks_per_machine);
std::string machine_traffic_text(const MachineTraffic& traffic);

}  // namespace sherd::engine
