// The reports as JSON, with exact bytes where the text rounds.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/plan/report.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::ordered_json;

Json by_category(const BytesByCategory& bytes) {
  Json json = Json::object();
  for (int i = 0; i < kNumCategories; ++i) {
    if (bytes[i] != 0) json[std::string(name_of(static_cast<Category>(i)))] = bytes[i];
  }
  return json;
}

Json by_phase(const BytesByPhase& phases) {
  Json json = Json::object();
  for (int i = 0; i < kNumPhases; ++i) {
    json[std::string(name_of(static_cast<Phase>(1u << i)))] = by_category(phases[i]);
  }
  return json;
}

Json plan_of_rank(const WorldPlan& world, int rank) {
  const MemoryPlan& plan = world.of(rank);
  Json json;
  json["worst_rank"] = rank;
  json["at_rest"] = by_category(plan.at_rest());
  json["by_phase"] = by_phase(plan.by_phase());
  json["peak_phase"] = name_of(plan.peak_phase());
  json["peak_bytes"] = plan.peak_bytes();
  json["arena_bytes"] = plan.arena_bytes();
  json["gap_bytes"] = plan.arena_bytes() - plan.peak_bytes();
  json["all_ranks_arena_bytes"] = world.all_arenas_bytes();
  return json;
}

Json plan_of_rank(const WorldPlan& world) {
  return plan_of_rank(world, world.worst_rank());
}

Json change_json(const Change& change) {
  Json json;
  Json settings = Json::object();
  for (const auto& [key, value] : change.settings) settings[key] = value;
  json["settings"] = std::move(settings);
  json["arguments"] = change.arguments;
  json["needed_bytes"] = change.needed_bytes;
  json["work_ratio"] = change.flops_ratio;
  json["sent_ratio"] = change.sent_ratio;
  return json;
}

Json extreme_json(const std::optional<ValueLimit>& extreme) {
  if (!extreme) return nullptr;
  Json json = change_json(extreme->change);
  json["value"] = extreme->value;
  return json;
}

Json machines_json(const MachineTraffic& traffic) {
  Json rows = Json::array();
  const auto row = [&](const std::string& callers, const std::string& what,
                       const LinkBytes& bytes) {
    rows.push_back({{"among", callers},
                    {"what", what},
                    {"within_machine_bytes", bytes.within},
                    {"to_other_machines_bytes", bytes.across}});
  };
  for (const MachineTraffic::Row& each : traffic.rows) row(each.callers, each.what, each.bytes);
  row("sum", "all", traffic.sum);
  return {{"ranks_per_machine", traffic.ranks_per_machine},
          {"gathers_passed_on", traffic.passed_on},
          {"added_on_machines", traffic.added_on_machines},
          {"machine", traffic.machine},
          {"rows", std::move(rows)},
          {"all_machines",
           {{"within_machine_bytes", traffic.all.within},
            {"to_other_machines_bytes", traffic.all.across}}}};
}

Json sent_json(const std::vector<sharding::Sent>& all) {
  Json lines = Json::array();
  for (const sharding::Sent& sent : all) {
    lines.push_back({{"what", sent.label},
                     {"collective", sharding::name_of(sent.collective)},
                     {"dtype", name_of(sent.dtype)},
                     {"calls", sent.calls},
                     {"bytes", sent.bytes}});
  }
  return lines;
}

Json experts_json(const ExpertPlan& plan) {
  Json rounds = Json::array();
  for (const ExpertPlan::Rounds& each : plan.rounds) {
    rounds.push_back(
        {{"max_over_mean", each.imbalance > 0.0 ? Json(each.imbalance) : Json("worst")},
         {"fewest_rounds", each.fewest},
         {"most_rounds", each.most}});
  }
  return {{"ranks", plan.ranks},
          {"layers", plan.layers},
          {"rows", plan.rows},
          {"buffer_rows", plan.buffer_rows},
          {"rounds", std::move(rounds)},
          {"balanced_bytes", plan.balanced_bytes},
          {"worst_bytes", plan.worst_bytes}};
}

Json disk_json(const OffloadReport& plan) {
  Json json = {{"rank", plan.rank},
               {"at_rest", by_category(plan.at_rest)},
               {"file_bytes", plan.file_bytes},
               {"all_file_bytes", plan.all_file_bytes},
               {"read_bytes", plan.step.read},
               {"written_bytes", plan.step.written},
               {"all_read_bytes", plan.all_step.read},
               {"all_written_bytes", plan.all_step.written}};
  if (plan.max_steps > 0) {
    json["all_written_bytes_of_run"] = plan.max_steps * plan.all_step.written;
  }
  if (const auto seconds = plan.step_seconds()) json["step_seconds"] = *seconds;
  return json;
}

Json exchanges_json(const ExchangePlan& plan) {
  return {{"rank", plan.rank},
          {"sync_every", plan.options.sync_every},
          {"sent_bytes_of_fragments", plan.fragment_bytes},
          {"sent_bytes", plan.round_bytes},
          {"sent_bytes_per_step", plan.bytes_per_step()},
          {"held_bytes", plan.held_bytes}};
}

}  // namespace

std::string plan_json(const PlanReport& report) {
  const Recipe& recipe = report.planned.recipe;
  Json json;
  json["name"] = recipe.run.name;
  json["num_parameters"] = report.num_parameters;
  json["num_trained_parameters"] = report.num_trained;
  json["stage"] = recipe.zero_optimization.stage;
  json["world_size"] = recipe.world_size();
  json["micro_batch_size"] = recipe.training.micro_batch_size;
  json["gradient_accumulation_steps"] = recipe.training.gradient_accumulation_steps;
  json["seq_length"] = recipe.training.seq_length;
  json["plan"] = plan_of_rank(report.plan);
  json["stages"] = Json::array();
  for (const StageReport& stage : report.stages) {
    Json of_stage = {{"stage", stage.stage}};
    of_stage.update(plan_of_rank(stage.plan));
    of_stage["sent_bytes"] = stage.sent_bytes;
    of_stage["fits"] = stage.needed_bytes <= report.limit.bytes;
    json["stages"].push_back(std::move(of_stage));
  }
  json["limit"] = {{"bytes", report.limit.bytes},
                   {"shared_by_all_ranks", report.limit.shared},
                   {"origin", report.limit.origin}};
  json["needed_bytes"] = report.needed_bytes;
  json["fits"] = report.fits();
  json["changes"] = Json::array();
  for (const Change& change : report.changes) json["changes"].push_back(change_json(change));
  json["largest_micro_batch"] = extreme_json(report.largest_micro_batch);
  json["smallest_world"] = extreme_json(report.smallest_world);
  json["sent"] = sent_json(report.sent);
  json["sent_bytes"] = report.sent_bytes;
  if (report.plan.worst_server() >= 0) {
    json["parameter_servers"] = {
        {"worker_plan", plan_of_rank(report.plan, report.plan.worst_worker())},
        {"server_plan", plan_of_rank(report.plan, report.plan.worst_server())},
        {"server_memory_bytes", report.limit.server_bytes},
        {"sent", sent_json(report.sent_by_server.sent())},
        {"sent_bytes", report.sent_by_server.total_bytes()}};
  }
  if (report.exchanges) json["local_updates"] = exchanges_json(*report.exchanges);
  if (report.offloaded) json["disk"] = disk_json(*report.offloaded);
  if (report.experts) json["experts"] = experts_json(*report.experts);
  if (report.machines) json["sent_by_machine"] = machines_json(*report.machines);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string memory_json(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                        std::int64_t resident_bytes) {
  SHERD_CHECK(std::ssize(ranks) == plan.world_size(), "{} ranks measured of {}", ranks.size(),
              plan.world_size());
  const MeasuredMemory& worst = ranks[plan.worst_rank()];
  Json predicted, measured;
  std::int64_t arenas_resident = 0;
  predicted["worst_rank"] = plan.worst_rank();
  predicted["peak_bytes"] = plan.worst().peak_bytes();
  predicted["arena_bytes"] = plan.worst().arena_bytes();
  predicted["all_ranks_arena_bytes"] = plan.all_arenas_bytes();
  predicted["by_category"] = by_category(plan.worst().peak_by_category());
  measured["peak_bytes"] = worst.peak_bytes;
  measured["by_category"] = by_category(worst.peak_by_category);
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const MemoryPlan& of = plan.of(rank);
    arenas_resident += ranks[rank].resident_bytes;
    predicted["by_rank"].push_back({{"rank", rank},
                                    {"peak_bytes", of.peak_bytes()},
                                    {"arena_bytes", of.arena_bytes()},
                                    {"by_category", by_category(of.peak_by_category())},
                                    {"by_phase", by_phase(of.by_phase())}});
    measured["by_rank"].push_back({{"rank", rank},
                                   {"peak_bytes", ranks[rank].peak_bytes},
                                   {"resident_bytes", ranks[rank].resident_bytes},
                                   {"taken_bytes", ranks[rank].taken_bytes},
                                   {"by_category", by_category(ranks[rank].peak_by_category)},
                                   {"by_phase", by_phase(ranks[rank].by_phase)}});
    if (ranks[rank].gpu < 0) continue;
    measured["by_rank"].back()["gpu"] = ranks[rank].gpu;
    measured["by_rank"].back()["gpu_bytes_in_use"] = ranks[rank].gpu_bytes_in_use;
    measured["by_rank"].back()["host_bytes"] = ranks[rank].host_bytes;
    predicted["by_rank"].back()["host_bytes"] = plan.host_of(rank).arena_bytes();
  }
  Json all;
  all["predicted"] = std::move(predicted);
  all["measured"] = std::move(measured);
  all["process"] = {{"resident_peak_bytes", resident_bytes},
                    {"arenas_resident_bytes", arenas_resident},
                    {"outside_plan_bytes", resident_bytes - arenas_resident}};
  return all.dump(2) + "\n";
}

}  // namespace sherd::engine
