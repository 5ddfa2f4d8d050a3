// The report as a page: the same figures as the text, drawn. Cells and pieces of bars have their
// bytes in data-bytes. No script, nothing from the network.
#include <fmt/format.h>

#include <algorithm>

#include "core/byte_size.h"
#include "core/human_text.h"
#include "engine/plan/page_style.h"
#include "engine/plan/pipeline_report.h"
#include "engine/plan/report.h"
#include "engine/report/page.h"
#include "engine/schedule/picture.h"

namespace sherd::engine {
namespace {

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string swatch(int category) {
  return fmt::format("<i style=\"background:var(--{})\"></i>",
                     name_of(static_cast<Category>(category)));
}

// A piece of a bar or column, `dimension` being width or height.
std::string piece(int category, std::int64_t bytes, std::int64_t whole, const char* dimension) {
  const auto which = static_cast<Category>(category);
  return fmt::format(
      "<i data-category=\"{0}\" data-bytes=\"{1}\" title=\"{2}: {3}\" "
      "style=\"{4}:{5:.4f}%;background:var(--{0})\"></i>",
      name_of(which), bytes, readable_name(which), human_bytes(bytes), dimension,
      percent(bytes, whole));
}

std::string legend(const BytesByCategory& used) {
  std::string html = "<ul class=\"legend\">";
  for (int i = 0; i < kNumCategories; ++i) {
    if (used[i] == 0) continue;
    html += fmt::format("<li>{}{}</li>", swatch(i), readable_name(static_cast<Category>(i)));
  }
  return html + "</ul>\n";
}

const BytesByCategory& at_peak(const MemoryPlan& plan) {
  return plan.by_phase()[phase_index(plan.peak_phase())];
}

std::string verdict_section(const PlanReport& report) {
  const std::int64_t whole = std::max(report.needed_bytes, report.limit.bytes);
  return fmt::format(
      "<section>\n<p class=\"verdict {0}\">{1}</p>\n"
      "<div class=\"meter{2}\" role=\"img\" aria-label=\"{3} needed, {4} available\">"
      "<i style=\"width:{5:.3f}%\"></i>{6}</div>\n"
      "<p class=\"small soft\">{3} needed{7}; {4} available{9} "
      "<span class=\"origin\">({8})</span></p>\n</section>\n",
      report.fits() ? "good" : "bad",
      report.fits() ? fmt::format("It fits, with {} to spare.",
                                  human_bytes(report.limit.bytes - report.needed_bytes))
                    : fmt::format("It doesn’t fit: {} too little.",
                                  human_bytes(report.needed_bytes - report.limit.bytes)),
      report.fits() ? "" : " over", human_bytes(report.needed_bytes),
      human_bytes(report.limit.bytes), percent(report.needed_bytes, whole),
      report.fits()
          ? ""
          : fmt::format("<b style=\"left:{:.3f}%\"></b>", percent(report.limit.bytes, whole)),
      report.limit.shared && report.plan.world_size() > 1
          ? fmt::format(" by {} ranks together", report.plan.world_size())
          : " per rank",
      escaped(report.limit.origin), report.fits() ? "" : ", marked by the line");
}

std::int64_t limit_per_rank(const PlanReport& report) {
  if (!report.limit.shared) return report.limit.bytes;
  return report.limit.bytes / report.plan.world_size();
}

std::string stages_section(const PlanReport& report) {
  std::int64_t whole = 1;
  BytesByCategory used{};
  for (const StageReport& stage : report.stages) {
    whole = std::max(whole, stage.plan.worst().arena_bytes());
    for (int i = 0; i < kNumCategories; ++i) used[i] += at_peak(stage.plan.worst())[i];
  }
  const std::int64_t limit = limit_per_rank(report);
  std::string html = fmt::format(
      "<section>\n<h2>Stages</h2>\n<p class=\"small soft\">Peak memory of one rank, on the "
      "same {} with the same batch. The recipe’s stage is underlined{}.</p>\n",
      report.plan.world_size() == 1 ? "rank" : fmt::format("{} ranks", report.plan.world_size()),
      limit < whole ? "; the dashed line is the limit per rank" : "");
  for (const StageReport& stage : report.stages) {
    const MemoryPlan& plan = stage.plan.worst();
    const bool fits = stage.needed_bytes <= report.limit.bytes;
    html += fmt::format(
        "<div class=\"stage\" data-stage=\"{0}\" data-peak-bytes=\"{1}\" data-arena-bytes=\"{2}\">"
        "<strong{3}>stage {0}</strong><div class=\"bar\" role=\"img\" aria-label=\"stage {0}: "
        "{4}\"><div class=\"fill\" style=\"width:{5:.4f}%\">",
        stage.stage, plan.peak_bytes(), plan.arena_bytes(),
        stage.stage == report.planned.recipe.zero_optimization.stage ? " class=\"mine\"" : "",
        human_bytes(plan.arena_bytes()), percent(plan.peak_bytes(), whole));
    for (int i = 0; i < kNumCategories; ++i) {
      const std::int64_t bytes = at_peak(plan)[i];
      if (bytes > 0) html += piece(i, bytes, plan.peak_bytes(), "width");
    }
    html += "</div>";
    if (limit < whole) {
      html +=
          fmt::format("<div class=\"limit\" style=\"left:{:.4f}%\"></div>", percent(limit, whole));
    }
    html += fmt::format(
        "</div><span class=\"figures\">{} <span class=\"{}\">{}</span></span></div>\n",
        human_bytes(plan.arena_bytes()), fits ? "good" : "bad", fits ? "fits" : "too large");
  }
  return html + legend(used) + "</section>\n";
}

std::string timeline_section(const PlanReport& report) {
  const MemoryPlan& plan = report.plan.worst();
  const std::int64_t micro_steps = report.planned.recipe.training.gradient_accumulation_steps;
  std::string columns, labels;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    const auto which = static_cast<Phase>(1u << phase);
    const bool of_step = which != kInit && which != kEvaluation;
    columns += fmt::format("<div class=\"column{}\" data-phase=\"{}\" data-bytes=\"{}\">",
                           of_step ? "" : " apart", name_of(which), plan.live_bytes(which));
    for (int i = kNumCategories - 1; i >= 0; --i) {  // the first at the bottom
      const std::int64_t bytes = plan.by_phase()[phase][i];
      if (bytes > 0) columns += piece(i, bytes, plan.arena_bytes(), "height");
    }
    columns += "</div>";
    labels += fmt::format("<div class=\"phase\">{}<br><span class=\"soft\">{}</span></div>",
                          name_of(which), human_bytes(plan.live_bytes(which)));
  }
  return fmt::format(
      "<section>\n<h2>One step</h2>\n<p class=\"small soft\">Memory in use in each phase on {}. "
      "The "
      "full height of a column is the arena, {}; widths don’t show time. Faded columns are outside "
      "the step.</p>\n"
      "<div class=\"timeline\">{}{}<div class=\"brace\">before</div><div class=\"brace\" "
      "style=\"grid-column:span 3\">{}</div><div class=\"brace\">once</div><div class=\"brace\">"
      "separate</div></div>\n{}</section>\n",
      escaped(worst_rank_text(report.plan)), human_bytes(plan.arena_bytes()), columns, labels,
      micro_steps == 1 ? "one micro-step" : fmt::format("{} micro-steps", micro_steps),
      legend(plan.peak_by_category()));
}

std::string cell(const ByteUnit& unit, std::optional<std::int64_t> bytes) {
  if (!bytes) return "<td></td>";
  return fmt::format("<td data-bytes=\"{0}\" title=\"{0} B\">{1}</td>", *bytes, unit.text(*bytes));
}

std::string table_section(const PlanReport& report) {
  const MemoryPlan& plan = report.plan.worst();
  const ByteUnit unit = unit_for(plan.arena_bytes());
  const std::string head = fmt::format(
      "<section>\n<h2>Memory by category and phase</h2>\n<p class=\"small soft\">{}, in {}; peak "
      "{} in {}</p>\n",
      escaped(worst_rank_text(report.plan)), unit.name, human_bytes(plan.peak_bytes()),
      name_of(plan.peak_phase()));
  std::string html = "<table id=\"memory\"><tr><th></th>";
  for (const std::string& column : memory_columns()) html += fmt::format("<th>{}</th>", column);
  html += "</tr>\n";
  for (const MemoryRow& row : memory_rows(plan)) {
    int category = 0;
    while (category < kNumCategories && readable_name(static_cast<Category>(category)) != row.name)
      ++category;
    const bool is_category = category < kNumCategories;
    html += fmt::format("<tr{}><td>{}{}</td>", is_category ? "" : " class=\"sum\"",
                        is_category ? swatch(category) : "", row.name);
    for (const auto& bytes : row.bytes) html += cell(unit, bytes);
    html += "</tr>\n";
  }
  return head + scrolling("Memory by category and phase", html + "</table>") + "</section>\n";
}

std::string change_item(const std::string& label, const Change& change) {
  std::string cost =
      fmt::format("{}, work × {:.2f}", human_bytes(change.needed_bytes), change.flops_ratio);
  if (change.sent_ratio > 0.0) cost += fmt::format(", sent × {:.2f}", change.sent_ratio);
  return fmt::format("<li>{}<code>{}</code><br><span class=\"small soft\">{}</span></li>", label,
                     change.command().empty() ? "as it is" : escaped(change.command()), cost);
}

std::string extreme_item(const char* label, const std::optional<ValueLimit>& extreme) {
  if (!extreme) return fmt::format("<li>{}: none</li>", label);
  return change_item(fmt::format("{}: <strong>{}</strong><br>", label, extreme->value),
                     extreme->change);
}

std::string answers_section(const PlanReport& report) {
  std::string html = "<section>\n";
  if (!report.fits()) {
    html += "<h2>What fits, the cheapest first</h2>\n<ul class=\"answers\">";
    for (const Change& change : report.changes) html += change_item("", change);
    if (report.changes.empty()) {
      html +=
          "<li>No change of stage, micro-batch, recompute, prefetch depth, staging or "
          "ranks.</li>";
    }
    html += "</ul>\n</section>\n<section>\n";
  }
  html += "<h2>Limits of this recipe</h2>\n<ul class=\"answers\">";
  html += extreme_item("largest micro-batch that fits", report.largest_micro_batch);
  html += extreme_item("smallest world that fits", report.smallest_world);
  return html + "</ul>\n</section>\n";
}

std::string sent_section(const PlanReport& report) {
  const ByteUnit unit = unit_for(report.sent_bytes);
  const std::string head =
      fmt::format("<section>\n<h2>Sent in a step</h2>\n<p class=\"small soft\">by {}</p>\n",
                  sender_text(report));
  std::string html = fmt::format(
      "<table id=\"sent\"><tr><th></th><th class=\"text\">collective</th>"
      "<th class=\"text\">type</th><th>calls</th><th>{}</th></tr>\n",
      unit.name);
  for (const sharding::Sent& sent : report.sent) {
    html += fmt::format(
        "<tr><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}</td>{}</tr>\n",
        sent.label, sharding::name_of(sent.collective), name_of(sent.dtype), sent.calls,
        cell(unit, sent.bytes));
  }
  html += fmt::format("<tr class=\"sum\"><td>sum</td><td></td><td></td><td></td>{}</tr>\n</table>",
                      cell(unit, report.sent_bytes));
  return head + scrolling("Sent in a step", html) + "</section>\n";
}

std::string disk_section(const PlanReport& report) {
  if (!report.offloaded) return "";
  return fmt::format("<section>\n<h2>On disk</h2>\n<pre>{}</pre>\n</section>\n",
                     escaped(offload_text(*report.offloaded)));
}

}  // namespace

std::string plan_page(const PlanReport& report) {
  const std::string head = plan_headline(report);
  const std::string& name = report.planned.recipe.run.name;
  std::string style(kPlanPageStyle);
  if (report.planned.recipe.parallelism.pipeline_parallel_degree > 1)
    style += schedule::kPictureStyle;
  const std::string body =
      fmt::format("<h1>{}</h1>\n<p class=\"soft\">{}</p>\n{}{}{}{}{}{}{}{}", escaped(name),
                  escaped(head), verdict_section(report), stages_section(report),
                  timeline_section(report), table_section(report), pipeline_section(report.planned),
                  answers_section(report), sent_section(report), disk_section(report));
  return page({.title = name + ": memory plan", .style = style, .body = body});
}

}  // namespace sherd::engine
