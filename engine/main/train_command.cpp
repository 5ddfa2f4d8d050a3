#include <algorithm>
#include <chrono>
#include <numeric>

#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/main/world.h"
#include "engine/run/run.h"

namespace sherd::main {
namespace {

using std::chrono::milliseconds;

// A recipe that doesn't set ranks gets as few in each process as its other degrees allow: one, or
// several where they don't divide the number of processes.
engine::ResolvedRecipe recipe_for(const engine::RecipeRequest& request, int num_processes) {
  engine::ResolvedRecipe recipe = engine::resolve_recipe(request);
  const engine::Origin& degree = recipe.origin("parallelism.data_parallel_shard_degree");
  if (degree.kind != engine::Origin::Kind::kDefault) return recipe;
  engine::RecipeRequest with_ranks = request;
  const std::int64_t replicas = recipe.values.parallelism.data_parallel_replicate_degree;
  const std::int64_t workers = num_processes - recipe.values.parallelism.parameter_servers;
  const std::int64_t others = replicas * recipe.values.model_ranks();
  with_ranks.ranks =
      std::max<std::int64_t>(workers, 1) / std::gcd(std::max<std::int64_t>(workers, 1), others);
  return engine::resolve_recipe(with_ranks);
}

// The resolved recipe, or its error, which is sent to the others once they have joined.
struct EarlyRecipe {
  std::optional<engine::ResolvedRecipe> recipe{};
  std::exception_ptr error{};

  engine::ResolvedRecipe& value() {
    if (error) std::rethrow_exception(error);
    return *recipe;
  }
  milliseconds peer_timeout() const {
    return recipe ? std::chrono::seconds(recipe->values.run.peer_timeout)
                  : milliseconds(sharding::kDefaultPeerTimeout);
  }
};

EarlyRecipe early_recipe(const engine::RecipeRequest& request, int num_processes) {
  EarlyRecipe early;
  try {
    early.recipe.emplace(recipe_for(request, num_processes));
  } catch (...) {
    early.error = std::current_exception();
  }
  return early;
}

int train(const engine::RecipeRequest& request) {
  const int count = num_processes();
  if (count <= 1) {
    engine::train(engine::resolve_recipe(request), end_without);
    return 0;
  }
  EarlyRecipe early = early_recipe(request, count);
  const std::shared_ptr<sharding::Processes> processes = other_processes(early.peer_timeout());
  return run_with_others(processes, early.peer_timeout(),
                         [&] { engine::train(early.value(), processes, end_without); });
}

class TrainCommand {
 public:
  explicit TrainCommand(CLI::App& command) { add_recipe(command, request_)->required(); }
  int run() const { return train(request_); }

 private:
  engine::RecipeRequest request_;
};

}  // namespace

Command train_command(CLI::App& program) {
  return make_command<TrainCommand>(program, "train", "Train according to a recipe");
}

}  // namespace sherd::main
