#include "engine/plan/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/byte_size.h"
#include "core/human_text.h"
#include "engine/model/parameters.h"
#include "engine/plan/pipeline_report.h"
#include "engine/train/training_step.h"

namespace sherd::engine {
namespace {

// Whether the optimizer gives some ranks more to hold and send than others.
bool optimizer_differs(const TrainingOptions& options) {
  return optim::descriptor_of(options.optimizer.type).uneven_numels != nullptr;
}
bool ranks_differ(const PlannedRecipe& planned) {
  return planned.recipe.model_ranks() > 1 || optimizer_differs(planned.options);
}

// Of the rank of one place in the pipeline that sends most. Where the optimizer makes ranks differ,
// those that broadcast send most, and they are the first ones.
sharding::Traffic most_traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                               int first_rank, DeviceKind device) {
  sharding::Traffic most = TrainingStep::traffic(options, mesh, first_rank, device);
  if (!optimizer_differs(options)) return most;
  const int ranks = mesh.world_size() / mesh.degree(sharding::kPipelineAxis);
  const int end = std::min(first_rank + ranks, mesh.world_size());
  for (int rank = first_rank + 1; rank < end; ++rank) {
    sharding::Traffic traffic = TrainingStep::traffic(options, mesh, rank, device);
    const bool owns = std::any_of(traffic.sent().begin(), traffic.sent().end(), [](const auto& s) {
      return s.collective == sharding::Collective::kBroadcast && !s.callers.peer && s.bytes > 0;
    });
    if (!owns) break;
    if (traffic.total_bytes() > most.total_bytes()) most = std::move(traffic);
  }
  return most;
}

sharding::Traffic most_traffic(const PlannedRecipe& planned) {
  const sharding::Mesh& mesh = planned.mesh;
  sharding::Traffic most;
  const int ranks = mesh.world_size() / mesh.degree(sharding::kPipelineAxis);
  for (int first = 0; first < mesh.num_workers(); first += ranks) {
    sharding::Traffic traffic = most_traffic(planned.options, mesh, first, planned.device.kind);
    if (first == 0 || traffic.total_bytes() > most.total_bytes()) most = std::move(traffic);
  }
  return most;
}

std::string plural(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// "4 ranks (pipeline 2 x shard 2)".
std::string ranks_text(const sharding::Mesh& mesh) {
  const std::string ranks = plural(mesh.world_size(), "rank");
  if (mesh.degree(sharding::kShardAxis) == mesh.world_size()) return ranks;
  return fmt::format("{} ({})", ranks, mesh.text());
}

std::string parameters_text(std::int64_t count) {
  const auto number = static_cast<double>(count);
  if (number >= 1e12) return fmt::format("{:.2f} T", number / 1e12);
  if (number >= 1e9) return fmt::format("{:.2f} B", number / 1e9);
  return fmt::format("{:.2f} M", number / 1e6);
}

std::string stages_text(const PlanReport& report) {
  std::int64_t least = report.plan.worst().arena_bytes(), most_sent = 0;
  for (const StageReport& stage : report.stages) {
    least = std::min(least, stage.plan.worst().arena_bytes());
    most_sent = std::max(most_sent, stage.sent_bytes);
  }
  const ByteUnit unit = unit_for(least), sent_unit = unit_for(most_sent);
  std::string text =
      fmt::format("stages on {}, {} per rank\n{:<8}{:>11}{:>11}{:>11}{:>12}\n",
                  plural(report.planned.recipe.world_size(), "rank"), unit.name, "", "at rest",
                  "peak", "arena", fmt::format("sent, {}", sent_unit.name));
  for (const StageReport& stage : report.stages) {
    const MemoryPlan& plan = stage.plan.worst();
    text += fmt::format(
        "{:<8}{:>11}{:>11}{:>11}{:>12}  {}{}\n", fmt::format("stage {}", stage.stage),
        unit.text(sum(plan.at_rest())), unit.text(plan.peak_bytes()), unit.text(plan.arena_bytes()),
        sent_unit.text(stage.sent_bytes),
        stage.needed_bytes <= report.limit.bytes ? "fits" : "doesn't fit",
        stage.stage == report.planned.recipe.zero_optimization.stage ? ", this recipe" : "");
  }
  return text;
}

std::string change_text(const Change& change) {
  std::string cost = fmt::format("work x {:.2f}", change.flops_ratio);
  if (change.sent_ratio > 0.0) cost += fmt::format(", sent x {:.2f}", change.sent_ratio);
  return fmt::format("{}  ({}; {})", change.command().empty() ? "as it is" : change.command(),
                     human_bytes(change.needed_bytes), cost);
}

std::string fits_text(const PlanReport& report) {
  const std::string has =
      report.limit.shared
          ? fmt::format("{} has {}", report.limit.origin, human_bytes(report.limit.bytes))
          : fmt::format("the device has {} ({})", human_bytes(report.limit.bytes),
                        report.limit.origin);
  const Recipe& recipe = report.planned.recipe;
  if (const auto problem = server_problem(recipe, report.plan, report.limit)) {
    return fmt::format("doesn't fit: {}\n", *problem);
  }
  std::string text =
      fmt::format("{}: {}; {}", report.fits() ? "fits" : "doesn't fit",
                  need_sentence(report.planned.recipe, report.plan, report.limit), has);
  if (report.fits()) {
    return text +
           fmt::format(", {} to spare\n", human_bytes(report.limit.bytes - report.needed_bytes));
  }
  text += fmt::format(", {} too little\n", human_bytes(report.needed_bytes - report.limit.bytes));
  if (report.changes.empty()) {
    return text +
           "no change of stage, micro-batch, recompute, prefetch depth, staging or ranks fits\n";
  }
  text += "what fits, the cheapest first:\n";
  for (const Change& change : report.changes) text += "  " + change_text(change) + "\n";
  return text;
}

std::string extreme_text(std::string_view label, const std::optional<ValueLimit>& extreme) {
  if (!extreme) return fmt::format("{}: none\n", label);
  return fmt::format("{}: {}, {}\n", label, extreme->value, change_text(extreme->change));
}

std::string sent_text(const std::vector<sharding::Sent>& all, std::int64_t bytes,
                      std::string_view sender) {
  const ByteUnit unit = unit_for(bytes);
  std::string text = fmt::format("sent in a step by {}\n{:<24}{:>14}{:>8}{:>12}{:>14}\n", sender,
                                 "", "collective", "type", "calls", unit.name);
  for (const sharding::Sent& sent : all) {
    text += fmt::format("{:<24}{:>14}{:>8}{:>12}{:>14}\n", sent.label,
                        sharding::name_of(sent.collective), name_of(sent.dtype), sent.calls,
                        unit.text(sent.bytes));
  }
  return text + fmt::format("{:<24}{:>48}\n", "sum", unit.text(bytes));
}

std::string sent_text(const PlanReport& report) {
  std::string text = sent_text(report.sent, report.sent_bytes, sender_text(report));
  const sharding::Traffic& of_server = report.sent_by_server;
  if (report.planned.mesh.num_owners() == 0) return text;
  return text + "\n" +
         sent_text(of_server.sent(), of_server.total_bytes(),
                   optimizer_differs(report.planned.options)
                       ? "the parameter server that sends most"
                       : "each parameter server");
}

}  // namespace

PlanReport plan_report(const ResolvedRecipe& recipe, const DeviceLimit& limit,
                       int ranks_per_machine, const std::optional<DiskRates>& rates) {
  const PlannedRecipe planned = recipe.values;
  WorldPlan plan = plan_world(planned, PlanDetail::kSums);
  const std::int64_t needed = needed_bytes(plan, limit);
  const sharding::Traffic traffic = most_traffic(planned);
  PlanReport report{
      .planned = planned,
      .num_parameters = model::num_parameters(planned.options.model),
      .num_trained = model::num_trained_parameters(planned.options.model),
      .plan = std::move(plan),
      .limit = limit,
      .needed_bytes = needed,
      .stages = {},
      .changes = {},
      .largest_micro_batch = largest_micro_batch(recipe, limit),
      .smallest_world = smallest_world(recipe, limit),
      .sent = traffic.sent(),
      .sent_bytes = traffic.total_bytes(),
      .sent_by_server = {},
      .experts = expert_plan(planned.options, planned.mesh, traffic.sent()),
      .exchanges = exchange_plan(planned.options, planned.mesh),
      .offloaded = {},
      .machines = {},
  };
  if (planned.mesh.num_owners() > 0) {
    report.sent_by_server = most_traffic(planned.options, planned.mesh, planned.mesh.num_workers(),
                                         planned.device.kind);
  }
  report.offloaded = offload_report(planned, report.plan, rates);
  if (ranks_per_machine > 0) report.machines = machine_traffic(planned, ranks_per_machine);
  for (const auto& [stage, variant] : at_every_stage(recipe)) {
    const PlannedRecipe at_stage = variant.values;
    const bool is_own = stage == planned.recipe.zero_optimization.stage;
    WorldPlan of_stage = is_own ? report.plan : plan_world(at_stage, PlanDetail::kSums);
    std::int64_t bytes = needed_bytes(of_stage, limit);
    if (!engine::fits(of_stage, limit)) bytes = std::max(bytes, limit.bytes + 1);
    report.stages.push_back({stage, std::move(of_stage), bytes,
                             is_own ? report.sent_bytes : most_traffic(at_stage).total_bytes()});
  }
  if (!report.fits()) report.changes = cheapest_changes(recipe, limit);
  return report;
}

std::string plan_headline(const PlanReport& report) {
  const Recipe& recipe = report.planned.recipe;
  const std::int64_t frozen = report.num_parameters - report.num_trained;
  std::string parts =
      frozen == 0 ? ""
                  : fmt::format(" ({} trained, {} frozen)", parameters_text(report.num_trained),
                                parameters_text(frozen));
  const model::ModelShape& shape = report.planned.options.model;
  if (shape.moe.active()) {
    parts += fmt::format(" ({} for a token, {} of {} experts)",
                         parameters_text(model::num_active_parameters(shape)), shape.moe.per_token,
                         shape.moe.experts);
  }
  return fmt::format("{} parameters{}, stage {} on {}, {} of {} x {} tokens per rank and step",
                     parameters_text(report.num_parameters), parts, recipe.zero_optimization.stage,
                     ranks_text(report.planned.mesh),
                     plural(recipe.training.gradient_accumulation_steps, "micro-step"),
                     recipe.training.micro_batch_size, recipe.training.seq_length);
}

std::string epochs_text(const Recipe& recipe) {
  if (recipe.training.max_steps > 0) return "";
  return fmt::format("{}; the number of steps follows from the data: sherd data\n",
                     plural(recipe.training.num_epochs, "epoch"));
}

std::string sender_text(const PlanReport& report) {
  if (report.planned.recipe.world_size() == 1) return "the only rank";
  if (report.planned.mesh.num_owners() > 0) return "each worker";
  if (ranks_differ(report.planned)) return "the rank that sends most";
  return "each rank";
}

std::string plan_text(const PlanReport& report) {
  std::string text = report.planned.recipe.run.name + ": " + plan_headline(report) + "\n" +
                     epochs_text(report.planned.recipe) + "\n" + memory_table(report.plan) + "\n" +
                     pipeline_text(report.planned) + stages_text(report) + "\n" + fits_text(report);
  text += extreme_text("largest micro-batch that fits", report.largest_micro_batch);
  text += extreme_text("smallest world that fits", report.smallest_world);
  text += "\n" + sent_text(report);
  if (report.exchanges) text += "\n" + exchange_plan_text(*report.exchanges);
  if (report.offloaded) text += "\n" + offload_text(*report.offloaded);
  if (report.experts) text += "\n" + expert_plan_text(*report.experts);
  if (report.machines) text += "\n" + machine_traffic_text(*report.machines);
  return text;
}

}  // namespace sherd::engine
