#include "engine/plan/pipeline_report.h"
#include "engine/schedule/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/report/page.h"
#include "engine/schedule/peaks.h"
#include "engine/schedule/picture.h"
#include "engine/train/layout/pipeline_plan.h"

namespace sherd::engine {
namespace {

struct Row {
  std::string rank, layers, activations, waiting, idle;
};

struct Pipelined {
  PipelinePlan plan;
  schedule::StepTimes times;
  schedule::Simulation run;  // without spans
  std::vector<Row> rows;
};

std::string layers_text(const Chunk& chunk) {
  const int last = chunk.end_block() - 1;
  const std::string blocks = last == chunk.first_block
                                 ? std::to_string(last)
                                 : fmt::format("{}-{}", chunk.first_block, last);
  return fmt::format("{}{}{}", chunk.embedding ? "embedding, " : "", blocks,
                     chunk.head ? ", head" : "");
}

Pipelined pipelined(const PlannedRecipe& planned) {
  Pipelined made{pipeline_plan(planned.options, planned.mesh), {}, {}, {}};
  made.times = estimated_times(made.plan, planned.options.model);
  made.run = schedule::simulate_each(*made.plan.schedule, made.times);
  // Of a micro-batch in all of a rank's parts, as papers count them.
  const int per_rank = made.plan.layout().chunks_per_rank;
  const auto shares = [per_rank](std::int64_t slots) {
    return fmt::format("{:.4g}", static_cast<double>(slots) / per_rank);
  };
  const std::vector<schedule::Peak> peaks = schedule::peaks_by_rank(*made.plan.schedule);
  for (int rank = 0; rank < made.plan.layout().num_ranks; ++rank) {
    std::string layers;
    for (const int chunk : made.plan.layout().chunks_of(rank)) {
      layers += fmt::format("{}{}", layers.empty() ? "" : "; ",
                            layers_text(made.plan.chunks[static_cast<std::size_t>(chunk)]));
    }
    const schedule::Peak& peak = peaks[static_cast<std::size_t>(rank)];
    const double idle = static_cast<double>(made.run.idle(rank).count()) /
                        static_cast<double>(made.run.makespan.count());
    made.rows.push_back({std::to_string(rank), layers, shares(peak.kept), shares(peak.waiting),
                         fmt::format("{:.1f} %", 100.0 * idle)});
  }
  return made;
}

std::string picture_text(const Pipelined& made) {
  schedule::TextPicture picture(*made.plan.schedule, made.run, 80,
                                schedule::TimeUnit::kShareOfStep);
  schedule::simulate_each(*made.plan.schedule, made.times,
                          [&](std::size_t rank, std::size_t position, const schedule::Span& span) {
                            picture.add(rank, position, span);
                          });
  return picture.text();
}

// Draws a rectangle for each action, unless there are too many to see.
std::string picture_svg(const Pipelined& made) {
  constexpr std::size_t kMostActions = 200'000;
  std::size_t actions = 0;
  for (const auto& of_rank : made.plan.schedule->ranks) actions += of_rank.size();
  if (actions > kMostActions) {
    return fmt::format("<p class=\"small soft\">Not drawn: its {} actions are more than {}.</p>\n",
                       actions, kMostActions);
  }
  return "<p class=\"hint small soft\" aria-hidden=\"true\">more to the right →</p>\n" +
         schedule::picture_svg(*made.plan.schedule,
                               schedule::simulate(*made.plan.schedule, made.times),
                               schedule::TimeUnit::kShareOfStep);
}

std::string headline(const Recipe& recipe, const Pipelined& made) {
  return fmt::format("{} on {} ranks: idle for {:.1f} % of a step, estimated",
                     schedule::name_of(recipe.parallelism.pipeline_schedule),
                     made.plan.layout().num_ranks, 100.0 * made.run.idle_share());
}

}  // namespace

std::string pipeline_text(const PlannedRecipe& planned) {
  if (planned.mesh.degree(sharding::kPipelineAxis) == 1) return {};
  const Pipelined made = pipelined(planned);
  std::string text =
      fmt::format("{}\n\n{}\n{:<7}{:<36}{:>12}{:>9}{:>9}\n", headline(planned.recipe, made),
                  picture_text(made), "place", "layers", "activations", "waiting", "idle");
  for (const Row& row : made.rows) {
    text += fmt::format("{:<7}{:<36}{:>12}{:>9}{:>9}\n", row.rank, row.layers, row.activations,
                        row.waiting, row.idle);
  }
  return text +
         "activations and waiting: micro-batches at a time, each through all of a rank's "
         "layers\n\n";
}

std::string pipeline_section(const PlannedRecipe& planned) {
  if (planned.mesh.degree(sharding::kPipelineAxis) == 1) return {};
  const Pipelined made = pipelined(planned);
  const std::string html = fmt::format(
      "<section>\n<h2>Pipeline</h2>\n<p class=\"small soft\">{}. Activations and waiting are "
      "micro-batches at a time, each through all of a rank’s layers.</p>\n{}",
      headline(planned.recipe, made), picture_svg(made));
  std::string table =
      "<table id=\"pipeline\"><tr><th>pipeline rank</th><th class=\"text\">layers</th>"
      "<th>activations</th><th>waiting</th><th>idle</th></tr>\n";
  for (const Row& row : made.rows) {
    table += fmt::format(
        "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        row.rank, row.layers, row.activations, row.waiting, row.idle);
  }
  return html + scrolling("Pipeline", table + "</table>") + "</section>\n";
}

}  // namespace sherd::engine
