#include "engine/plan/expert_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/human_text.h"
#include "engine/model/mlp/expert_rounds.h"
#include "engine/train/layout/sharding_plan.h"

namespace sherd::engine {

std::optional<ExpertPlan> expert_plan(const TrainingOptions& options, const sharding::Mesh& mesh,
                                      const std::vector<sharding::Sent>& sent) {
  const model::ModelShape shape = rank_model(options, mesh, 0);
  if (!shape.expert.is_cut()) return std::nullopt;
  const kernels::ExpertsShape owned = shape.owned_experts();
  ExpertPlan plan{.ranks = shape.expert.degree,
                  .layers = shape.num_mixtures(0, shape.num_blocks()),
                  .rows = shape.tokens() * shape.moe.per_token,
                  .buffer_rows = owned.buffer_rows};
  const std::int64_t most = owned.tokens * owned.per_token;
  const auto add = [&](double imbalance, std::int64_t rows) {
    plan.rounds.push_back({imbalance, model::fewest_rounds(owned, rows),
                           model::most_rounds(owned, rows, plan.ranks)});
  };
  for (const double imbalance : {1.0, 2.0, 4.0, 8.0}) {
    if (imbalance * static_cast<double>(plan.rows) > static_cast<double>(most)) break;
    add(imbalance, std::llround(static_cast<double>(plan.rows) * imbalance));
  }
  add(0.0, most);
  for (const sharding::Sent& each : sent) {
    if (each.collective != sharding::Collective::kAllToAllV) continue;
    plan.balanced_bytes += each.bytes;
    const bool returns = each.label.find(" from experts") != std::string::npos ||
                         each.label == "gradients of weights";
    const std::int64_t all_rows = each.bytes * plan.ranks / (plan.ranks - 1);
    // Home sends all its rows away; an owner may have to return those of all other ranks.
    plan.worst_bytes +=
        returns ? each.bytes * plan.ranks * owned.per_token / shape.moe.per_token : all_rows;
  }
  return plan;
}

std::string expert_plan_text(const ExpertPlan& plan) {
  std::string text = fmt::format(
      "experts on {} ranks: a micro-batch has {} rows in each of {} layers, buffers have {}\n",
      plan.ranks, plan.rows, plan.layers, plan.buffer_rows);
  const auto line = [&](const char* label, const auto& value) {
    text += fmt::format("{:<34}", label);
    for (const ExpertPlan::Rounds& each : plan.rounds) text += fmt::format("{:>8}", value(each));
    text += '\n';
  };
  line("rows of the fullest rank / mean", [](const ExpertPlan::Rounds& each) {
    return each.imbalance > 0.0 ? fmt::format("{:g}", each.imbalance) : std::string("worst");
  });
  line("rounds, at least", [](const ExpertPlan::Rounds& each) { return each.fewest; });
  line("rounds, at most", [](const ExpertPlan::Rounds& each) { return each.most; });
  return text + fmt::format(
                    "rows that a rank sends in a step: {} if all ranks are chosen equally, at most "
                    "{}\n",
                    human_bytes(plan.balanced_bytes), human_bytes(plan.worst_bytes));
}

}  // namespace sherd::engine
