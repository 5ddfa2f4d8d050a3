#include "engine/run/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/store/disk.h"
#include "core/error.h"
#include "core/human_text.h"
#include "core/small_file.h"
#include "engine/plan/time/step_comparison.h"
#include "engine/recipe/stored.h"
#include "engine/report/chart.h"
#include "engine/report/page.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kPageStyle = R"(
td.run, th.run { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
td.run i, th.run i { width: 14px; height: 4px; vertical-align: 4px; display: inline-block;
  border-radius: 3px; margin-right: 8px; }
td.given { white-space: normal; overflow-wrap: anywhere; }
.scroll + .bad { margin-top: 12px; }
)";

/// One column of the table of runs.
struct Figure {
  const char* name;
  std::string (*text)(const ReportedRun&);
};

std::string or_dash(const std::optional<double>& value, std::string (*text)(double)) {
  return value ? text(*value) : "-";
}
std::string loss_text(double loss) {
  return fmt::format("{:.4f}", loss);
}
std::string bytes_text(double bytes) {
  return human_bytes(static_cast<std::int64_t>(bytes));
}
std::string share_text(double share) {
  return fmt::format("{:.1f} %", share * 100.0);
}
std::string plain(double value) {
  return fmt::format("{:.4g}", value);
}

std::string state_text(const ReportedRun& run) {
  return run.history.early_end ? "ended early" : std::string(name_of(run.summary.state));
}
std::string steps_text(const ReportedRun& run) {
  if (!run.summary.max_steps) return fmt::format("{}", run.summary.step);
  return fmt::format("{}/{}", run.summary.step, *run.summary.max_steps);
}
std::string best_text(const ReportedRun& run) {
  const auto best = lowest(run.history.val_loss);
  return best ? fmt::format("{:.4f} at {}", best->value, best->step) : "-";
}

const std::array kFigures = {
    Figure{"state", state_text},
    Figure{"step", steps_text},
    Figure{"loss",
           [](const ReportedRun& run) { return or_dash(last_value(run.history.loss), loss_text); }},
    Figure{"best val loss", best_text},
    Figure{"tok/s",
           [](const ReportedRun& run) {
             return or_dash(median(run.history.tokens_per_s), human_rate);
           }},
    Figure{"exposed",
           [](const ReportedRun& run) {
             return or_dash(median(run.history.exposed_comm_ms), human_milliseconds);
           }},
    Figure{"data wait",
           [](const ReportedRun& run) {
             return or_dash(mean(run.history.data_wait_ms), human_milliseconds);
           }},
    Figure{"goodput",
           [](const ReportedRun& run) { return or_dash(run.history.goodput, share_text); }},
    Figure{
        "memory",
        [](const ReportedRun& run) { return or_dash(last_value(run.history.memory), bytes_text); }},
};
constexpr const char* kWhatFiguresAre =
    "tok/s and exposed are medians of all steps, data wait their mean; goodput is the share of "
    "time that moved the model; "
    "memory is the peak of rank 0";

struct Picture {
  const char* title;
  Curve RunHistory::*curve;
  std::string (*label)(double);
  bool from_zero, bytes = false, may_lack = false, marks = false;
};
constexpr std::array kPictures = {
    Picture{"Loss", &RunHistory::loss, plain, false, false, false, true},
    Picture{"Validation loss", &RunHistory::val_loss, plain, false},
    Picture{"Gradient norm", &RunHistory::grad_norm, plain, false, false, false, true},
    Picture{"Balance loss of experts", &RunHistory::balance_loss, plain, false, false, true},
    Picture{"Z-loss", &RunHistory::z_loss, plain, false, false, true},
    Picture{"Divergence from the teacher", &RunHistory::teacher_divergence, plain, false, false,
            true},
    Picture{"Loss of multi-token prediction", &RunHistory::mtp_loss, plain, false, false, true},
    Picture{"Largest attention logit", &RunHistory::max_attention_logit, plain, false, false, true},
    Picture{"Learning rate", &RunHistory::lr, plain, true},
    Picture{"Tokens per second", &RunHistory::tokens_per_s, human_rate, true},
    Picture{"Exposed communication", &RunHistory::exposed_comm_ms, human_milliseconds, true},
    Picture{"Waiting for data", &RunHistory::data_wait_ms, human_milliseconds, true, false, true},
    Picture{"Memory of rank 0", &RunHistory::memory, bytes_text, true, true},
};

// Steps that weren't applied, and those at which a run continued after going back.
std::vector<std::int64_t> marks_of(const RunHistory& history) {
  std::vector<std::int64_t> marks = history.bad_steps;
  for (const RunHistory::Rewind& rewind : history.rewinds) marks.push_back(rewind.to);
  return marks;
}

// What the run has compared with a prediction; "": nothing.
std::string step_time_text(const ReportedRun& run) {
  constexpr std::int64_t kMostBytes = 1 << 16;
  std::string problem;
  const auto json = read_small_file(run.summary.folder + "/time.json", kMostBytes, problem);
  if (!json) return {};
  const auto compared = StepComparison::from_json(*json);
  return compared ? compared->text() : "";
}

// Remarks below the table, about problems in the runs' files.
std::vector<std::string> remarks(const std::vector<ReportedRun>& runs) {
  std::vector<std::string> lines;
  for (const ReportedRun& run : runs) {
    const auto without = std::count_if(run.history.loss.begin(), run.history.loss.end(),
                                       [](const CurvePoint& p) { return p.value != p.value; });
    if (without > 0) {
      lines.push_back(fmt::format("{}: {} step{} without a finite loss", run.summary.folder,
                                  without, without == 1 ? "" : "s"));
    }
    if (const auto& bad = run.history.bad_steps; !bad.empty()) {
      lines.push_back(fmt::format("{}: {} step{} not applied (bad_steps), the last was step {}",
                                  run.summary.folder, bad.size(), bad.size() == 1 ? "" : "s",
                                  bad.back()));
    }
    if (const auto& rewinds = run.history.rewinds; !rewinds.empty()) {
      lines.push_back(fmt::format(
          "{}: {} rewind{} after bad steps, the last from step {} to {}", run.summary.folder,
          rewinds.size(), rewinds.size() == 1 ? "" : "s", rewinds.back().from, rewinds.back().to));
    }
    if (const std::string text = step_time_text(run); !text.empty()) {
      lines.push_back(fmt::format("{}: {}", run.summary.folder, text));
    }
    if (!run.history.slowest.empty()) {
      lines.push_back(fmt::format("{}: {}", run.summary.folder, run.history.slowest));
    }
    if (run.history.dropped_lines > 0) {
      lines.push_back(
          fmt::format("{}: {} step{} trained again after a restart; the last values are shown",
                      run.summary.folder, run.history.dropped_lines,
                      run.history.dropped_lines == 1 ? "" : "s"));
    }
  }
  return lines;
}

// Its folder, and its name if that differs.
std::string label_of(const ReportedRun& run) {
  const std::string& folder = run.summary.folder;
  const RecipeTexts values = printed_values(run.recipe);
  const auto found = values.find("run.name");
  if (found == values.end()) return folder;
  std::string name = found->second;
  std::erase(name, '"');
  const bool is_folders = std::filesystem::path(folder).filename() == name;
  return name.empty() || is_folders ? folder : fmt::format("{} ({})", folder, name);
}

std::vector<std::string> labels_of(const std::vector<ReportedRun>& runs) {
  std::vector<std::string> labels;
  for (const ReportedRun& run : runs) labels.push_back(label_of(run));
  return labels;
}

std::string name_cell(const std::vector<ReportedRun>& runs, std::size_t run) {
  return fmt::format("<td class=\"run\"><i style=\"background:{}\"></i>{}</td>", run_colour(run),
                     escaped(label_of(runs[run])));
}

std::string runs_section(const std::vector<ReportedRun>& runs) {
  std::string table = "<table id=\"runs\"><tr><th>run</th>";
  for (const Figure& figure : kFigures) table += fmt::format("<th>{}</th>", figure.name);
  table += "</tr>\n";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    table += "<tr>" + name_cell(runs, run);
    for (const Figure& figure : kFigures) {
      table += fmt::format("<td>{}</td>", escaped(figure.text(runs[run])));
    }
    table += "</tr>\n";
  }
  std::string html = fmt::format("<section>\n<h2>Runs</h2>\n<p class=\"small soft\">{}</p>\n{}",
                                 kWhatFiguresAre, scrolling("Runs", table + "</table>"));
  for (const std::string& line : remarks(runs)) {
    html += fmt::format("<p class=\"small bad\">{}</p>\n", escaped(line));
  }
  return html + "</section>\n";
}

// The validation set whose losses are those of all runs; "": none, or not the same one.
std::string main_set(const std::vector<ReportedRun>& runs) {
  for (const auto& [name, curve] : runs[0].history.val_losses) {
    const bool is_everywhere = std::ranges::all_of(runs, [&set = name](const ReportedRun& run) {
      const auto found = run.history.val_losses.find(set);
      return found != run.history.val_losses.end() && found->second == run.history.val_loss;
    });
    if (is_everywhere) return name;
  }
  return "";
}

// A chart for each name in any run's `curves`, but `without`.
std::string named_sections(const std::vector<ReportedRun>& runs,
                           const std::vector<std::string>& labels,
                           std::map<std::string, Curve> RunHistory::*curves,
                           const std::string& title_before_name, const std::string& without = "") {
  std::set<std::string> names;
  for (const ReportedRun& run : runs) {
    for (const auto& [name, curve] : run.history.*curves) names.insert(name);
  }
  names.erase(without);
  std::string html;
  for (const std::string& name : names) {
    const std::string title = title_before_name + name;
    Chart chart{.title = title, .label = plain};
    for (std::size_t run = 0; run < runs.size(); ++run) {
      const auto found = (runs[run].history.*curves).find(name);
      if (found != (runs[run].history.*curves).end()) {
        chart.lines.push_back({run, labels[run], &found->second});
      }
    }
    html += chart_section(chart);
  }
  return html;
}

std::string differences_section(const std::vector<ReportedRun>& runs) {
  const auto differences = recipe_differences(runs);
  if (differences.empty()) return "";
  std::string table = "<table id=\"recipes\"><tr><th>key</th>";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    table += fmt::format("<th class=\"run\"><i style=\"background:{}\"></i>{}</th>",
                         run_colour(run), escaped(label_of(runs[run])));
  }
  table += "</tr>\n";
  for (const RecipeDifference& difference : differences) {
    table += fmt::format("<tr><td>{}</td>", escaped(difference.key));
    for (const std::string& value : difference.values) {
      table += fmt::format("<td class=\"given\">{}</td>", value.empty() ? "-" : escaped(value));
    }
    table += "</tr>\n";
  }
  return fmt::format("<section>\n<h2>Differences between the recipes</h2>\n{}</section>\n",
                     scrolling("Differences between the recipes", table + "</table>"));
}

}  // namespace

std::vector<ReportedRun> read_runs(const std::vector<std::string>& folders) {
  std::vector<ReportedRun> runs;
  std::set<std::string> seen;
  for (const std::string& folder : folders) {
    const std::vector<RunSummary> found = list_runs(folder);
    if (found.empty())
      throw UsageError("{}: contains no run, directly or one level below.", folder);
    for (const RunSummary& summary : found) {
      if (!seen.insert(summary.folder).second) continue;
      auto& disk = checkpoint::posix_disk();
      const std::string recipe = summary.folder + "/recipe.yaml";
      runs.push_back({summary, read_history(summary.folder),
                      checkpoint::exists(disk, recipe)
                          ? checkpoint::read_file(disk, recipe, std::int64_t{1} << 20)
                          : ""});
    }
  }
  return runs;
}

std::vector<RecipeDifference> recipe_differences(const std::vector<ReportedRun>& runs) {
  std::map<std::string, std::vector<std::string>> values;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    for (auto& [key, value] : printed_values(runs[run].recipe)) {
      if (key == "run.name" || key == "run.output_dir") continue;
      std::vector<std::string>& of_key = values[key];
      of_key.resize(runs.size());
      of_key[run] = value;
    }
  }
  std::vector<RecipeDifference> differences;
  for (auto& [key, of_key] : values) {
    std::set<std::string> distinct(of_key.begin(), of_key.end());
    distinct.erase("");  // a run without this key
    if (distinct.size() > 1) differences.push_back({key, std::move(of_key)});
  }
  return differences;
}

std::string report_text(const std::vector<ReportedRun>& runs) {
  const std::vector<std::string> labels = labels_of(runs);
  std::size_t widest = 3;
  for (const std::string& label : labels) widest = std::max(widest, label.size());
  std::vector<std::vector<std::string>> columns;
  for (const Figure& figure : kFigures) {
    columns.push_back({figure.name});
    for (const ReportedRun& run : runs) columns.back().push_back(figure.text(run));
  }
  std::string text;
  for (std::size_t row = 0; row <= runs.size(); ++row) {
    text += fmt::format("{:<{}}", row == 0 ? "run" : labels[row - 1], widest);
    for (const auto& column : columns) {
      std::size_t width = 0;
      for (const std::string& cell : column) width = std::max(width, cell.size());
      text += fmt::format("  {:>{}}", column[row], width);
    }
    text += '\n';
  }
  for (const std::string& line : remarks(runs)) text += line + "\n";
  for (const RecipeDifference& difference : recipe_differences(runs)) {
    text += fmt::format("{}:", difference.key);
    for (std::size_t run = 0; run < runs.size(); ++run) {
      text += fmt::format("{} {}", run == 0 ? "" : " |",
                          difference.values[run].empty() ? "-" : difference.values[run]);
    }
    text += '\n';
  }
  return text;
}

std::string report_page(const std::vector<ReportedRun>& runs) {
  std::string title = runs.size() == 1 ? label_of(runs[0]) : fmt::format("{} runs", runs.size());
  std::string body =
      fmt::format("<h1>{}</h1>\n{}<div class=\"charts\">\n", escaped(title), runs_section(runs));
  const std::vector<std::string> labels = labels_of(runs);
  const std::string of_runs = main_set(runs);
  const std::string main_title = "Validation loss of " + of_runs;
  for (const Picture& picture : kPictures) {
    const bool is_main = picture.curve == &RunHistory::val_loss && !of_runs.empty();
    const bool is_empty = std::ranges::all_of(
        runs, [&](const ReportedRun& run) { return (run.history.*picture.curve).empty(); });
    if (is_empty && picture.may_lack) continue;
    Chart chart{.title = is_main ? std::string_view(main_title) : picture.title,
                .label = picture.label,
                .from_zero = picture.from_zero,
                .bytes = picture.bytes,
                .marks = "steps not applied, and ends of rewinds"};
    for (std::size_t run = 0; run < runs.size(); ++run) {
      chart.lines.push_back({run, labels[run], &(runs[run].history.*picture.curve)});
      if (picture.marks) chart.lines.back().marks = marks_of(runs[run].history);
    }
    body += chart_section(chart);
    if (picture.curve == &RunHistory::loss) {
      body += named_sections(runs, labels, &RunHistory::source_losses, "Loss of ");
    }
    if (picture.curve != &RunHistory::val_loss) continue;
    body += named_sections(runs, labels, &RunHistory::val_losses, "Validation loss of ", of_runs);
    body += named_sections(runs, labels, &RunHistory::scores, "", is_main ? "Bits per byte" : "");
  }
  body += "</div>\n" + differences_section(runs);
  return page(
      {.title = title, .style = std::string(kPageStyle) + std::string(kChartStyle), .body = body});
}

}  // namespace sherd::engine
