#include "engine/plan/search/exchange_forms.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/human_text.h"
#include "engine/plan/exchange_plan.h"
#include "engine/plan/machine_traffic.h"
#include "engine/plan/search/search.h"
#include "engine/plan/search/search_text.h"
#include "engine/plan/time/step_comparison.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kShard = "parallelism.data_parallel_shard_degree",
                           kReplicate = "parallelism.data_parallel_replicate_degree",
                           kGather = "mixed_precision.gather_dtype",
                           kReduce = "mixed_precision.reduce_dtype",
                           kReplicaReduce = "mixed_precision.replica_reduce_dtype",
                           kOverReplicas = "zero_optimization.shard_optimizer_over_replicas",
                           kSyncEvery = "diloco.sync_every", kQuantize = "diloco.quantize",
                           kLowRank = "powersgd.rank", kSparse = "dgc.compress_ratio",
                           kDecoupled = "optimizer.dion_decoupled",
                           kMaxNorm = "gradient_clipping.max_norm";

// A change of a recipe: keys, and what is written into their members.
struct Change {
  std::string name, results;
  std::vector<std::string_view> keys{};
  std::function<void(Recipe&)> write = [](Recipe&) {};
};

Change with_blocks(const Change& base, GatherType gather, ReduceType reduce) {
  Change change = base;
  const bool eight = gather == GatherType::kInt8Block64;
  change.name += fmt::format("{}int{} both ways", base.name.empty() ? "" : ", ", eight ? 8 : 4);
  change.results = "rounded in every step";
  change.keys.insert(change.keys.end(), {kGather, kReduce});
  change.write = [base, gather, reduce](Recipe& recipe) {
    base.write(recipe);
    recipe.mixed_precision.gather_dtype = gather;
    recipe.mixed_precision.reduce_dtype = reduce;
  };
  return change;
}

// Slices of gradients and of parameters cross, each once.
Change slices_in_blocks(const Change& base) {
  Change change = base;
  change.name = "replicas send slices: int4 gradients, int8 parameters";
  change.results = "rounded in every step";
  change.keys.insert(change.keys.end(), {kOverReplicas, kGather, kReplicaReduce});
  change.write = [base](Recipe& recipe) {
    base.write(recipe);
    recipe.zero_optimization.shard_optimizer_over_replicas = true;
    recipe.mixed_precision.gather_dtype = GatherType::kInt8Block64;
    recipe.mixed_precision.replica_reduce_dtype = ReplicaReduceType::kInt4Block64;
  };
  return change;
}

Change apart(const Change& base, std::int64_t steps, optim::Quantize quantize) {
  Change change = base;
  change.name = fmt::format("replicas apart for {} steps, {}", steps,
                            quantize == optim::Quantize::kInt8 ? "int8" : "int4");
  change.results = "another training";
  change.keys.insert(change.keys.end(), {kSyncEvery, kQuantize});
  change.write = [base, steps, quantize](Recipe& recipe) {
    base.write(recipe);
    recipe.diloco.sync_every = steps;
    recipe.diloco.quantize = quantize;
  };
  return change;
}

Change low_rank(const Change& base, std::int64_t rank) {
  Change change = base;
  change.name = fmt::format("low-rank sums over replicas, rank {}", rank);
  change.results = "rounded to that rank in every step, with feedback";
  change.keys.push_back(kLowRank);
  change.write = [base, rank](Recipe& recipe) {
    base.write(recipe);
    recipe.powersgd.rank = rank;
  };
  return change;
}

Change decoupled(const Change& base) {
  Change change = base;
  change.name = "factors of Dion's update over replicas";
  change.results = "Dion's, up to rounding; no clipping";
  change.keys.insert(change.keys.end(), {kDecoupled, kMaxNorm});
  change.write = [base](Recipe& recipe) {
    base.write(recipe);
    recipe.optimizer.dion_decoupled = true;
    recipe.gradient_clipping.max_norm = 0.0;
  };
  return change;
}

Change sparse(const Change& base, double ratio) {
  Change change = base;
  change.name = fmt::format("sparse sums over replicas, {} %", 100.0 * ratio);
  change.results = "the largest elements in every step, with feedback";
  change.keys.push_back(kSparse);
  change.write = [base, ratio](Recipe& recipe) {
    base.write(recipe);
    recipe.dgc.compress_ratio = ratio;
  };
  return change;
}

std::vector<Change> changes_of(const Recipe& recipe, const Cluster& cluster) {
  const auto& degrees = recipe.parallelism;
  const std::int64_t data =
      degrees.data_parallel_shard_degree * degrees.data_parallel_replicate_degree;
  std::vector<Change> changes = {{"as it is", "", {}}};
  const Change none;
  changes.push_back(with_blocks(none, GatherType::kInt8Block64, ReduceType::kInt8Block64));
  changes.push_back(with_blocks(none, GatherType::kInt4Block64, ReduceType::kInt4Block64));
  // The stages of a pipeline are on different machines first, so its replicas aren't.
  if (cluster.machines == 1 || data % cluster.machines != 0 ||
      degrees.pipeline_parallel_degree > 1) {
    return changes;
  }
  Change replicas{.name = "a replica on each machine", .results = "sums in another order"};
  replicas.keys = {kShard, kReplicate};
  replicas.write = [data, machines = cluster.machines](Recipe& changed) {
    changed.parallelism.data_parallel_replicate_degree = machines;
    changed.parallelism.data_parallel_shard_degree = data / machines;
  };
  if (degrees.data_parallel_replicate_degree != cluster.machines) {
    changes.insert(changes.begin() + 1, replicas);
    changes.push_back(with_blocks(replicas, GatherType::kInt8Block64, ReduceType::kInt8Block64));
  }
  if (recipe.diloco.active()) return changes;
  changes.push_back(slices_in_blocks(replicas));
  if (!recipe.powersgd.active() && !recipe.dgc.active() && !recipe.optimizer.decouples_replicas()) {
    if (recipe.optimizer.type == OptimizerType::kDion) changes.push_back(decoupled(replicas));
    changes.push_back(low_rank(replicas, 4));
    if (recipe.optimizer.type == OptimizerType::kSgd) changes.push_back(sparse(replicas, 0.01));
  }
  changes.push_back(apart(replicas, 50, optim::Quantize::kInt8));
  changes.push_back(apart(replicas, 500, optim::Quantize::kInt4));
  return changes;
}

double across_bytes(const Recipe& recipe, const Cluster& cluster) {
  if (!cluster.on_cpus() || recipe.parallelism.parameter_servers > 0) return -1.0;
  const PlannedRecipe planned(recipe);
  const auto here = static_cast<int>(cluster.ranks_per_machine);
  auto bytes = static_cast<double>(machine_traffic(planned, here).sum.across);
  // Replicas are on different machines: what they exchange leaves these.
  if (const auto plan = exchange_plan(planned.options, planned.mesh)) {
    bytes += plan->bytes_per_step() * static_cast<double>(here);
  }
  return bytes;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

ExchangeForm form_of(const ResolvedRecipe& recipe, const Cluster& cluster,
                     const std::optional<CpuRates>& cpus, const Change& change) {
  ExchangeForm form{.name = change.name, .results = change.results};
  Recipe wanted = recipe.values;
  change.write(wanted);
  for (const std::string_view key : change.keys) {
    const Field& field = recipe_fields()[static_cast<std::size_t>(field_index(key))];
    const std::string value = format_value(field, wanted);
    if (value != format_value(field, recipe.values)) form.settings.emplace_back(key, value);
  }
  try {
    const Recipe changed =
        change.keys.empty() ? recipe.values
                            : with_changes_or_errors(recipe, "", change.keys, change.write).values;
    const PredictedStep step = predicted_step(changed, cluster, cpus);
    form.seconds = step.time.total();
    form.tokens_per_s = step.tokens_per_s();
    form.across_bytes = across_bytes(changed, cluster);
  } catch (const UsageError& error) {
    if (change.keys.empty()) throw;
    form.refused = first_line(error.what());
  }
  return form;
}

std::string command_of(const ExchangeForm& form) {
  std::string text;
  for (const auto& [key, value] : form.settings) {
    text += fmt::format("{}--set {}={}", text.empty() ? "" : " ", key, value);
  }
  return text;
}

}  // namespace

std::vector<ExchangeForm> exchange_forms(const ResolvedRecipe& recipe, const Cluster& cluster,
                                         const std::optional<CpuRates>& cpus) {
  const ResolvedRecipe own = on_cluster(recipe, cluster);
  std::vector<ExchangeForm> forms;
  for (const Change& change : changes_of(own.values, cluster)) {
    forms.push_back(form_of(own, cluster, cpus, change));
  }
  return forms;
}

std::string exchange_forms_text(const std::vector<ExchangeForm>& forms) {
  std::string text;
  for (const ExchangeForm& form : forms) {
    text += form.name + (form.results.empty() ? "" : ": " + form.results) + "\n";
    if (const std::string command = command_of(form); !command.empty()) {
      text += "   " + command + "\n";
    }
    if (!form.refused.empty()) {
      text += "   refused: " + form.refused + "\n";
      continue;
    }
    text +=
        fmt::format("   {} a step, {}", seconds_text(form.seconds), tokens_text(form.tokens_per_s));
    if (form.across_bytes >= 0.0) {
      text += fmt::format(", {} leave a machine",
                          human_bytes(static_cast<std::int64_t>(form.across_bytes)));
    }
    text += "\n";
  }
  return text;
}

std::string exchange_forms_json(const std::vector<ExchangeForm>& forms) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ExchangeForm& form : forms) {
    nlohmann::ordered_json json;
    json["name"] = form.name;
    if (!form.results.empty()) json["results"] = form.results;
    json["settings"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : form.settings) json["settings"][key] = value;
    if (!form.refused.empty()) {
      json["refused"] = form.refused;
    } else {
      json["predicted_step_s"] = form.seconds;
      json["predicted_tokens_per_s"] = form.tokens_per_s;
      if (form.across_bytes >= 0.0) json["leaving_a_machine_bytes"] = form.across_bytes;
    }
    all.push_back(json);
  }
  return all.dump(2) + "\n";
}

}  // namespace sherd::engine
