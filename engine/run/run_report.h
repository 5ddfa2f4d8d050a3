/// Compares runs, from their own files: `sherd report`.
#pragma once

#include <string>
#include <vector>

#include "engine/report/run_history.h"
#include "engine/run/run_list.h"

namespace sherd::engine {

struct ReportedRun {
  RunSummary summary;
  RunHistory history;
  std::string recipe;  ///< the text of its recipe.yaml; "" if it has none
};

/// The runs that `folders` are or contain, in this order, each once.
/// Errors   UsageError for a folder without a run; DataError as read_history
std::vector<ReportedRun> read_runs(const std::vector<std::string>& folders);

/// A recipe key in which runs differ, and each run's value; "" if a run has none.
struct RecipeDifference {
  std::string key;
  std::vector<std::string> values;
};
/// Ignores names and paths of the runs themselves.
std::vector<RecipeDifference> recipe_differences(const std::vector<ReportedRun>& runs);

/// A table of all runs, and of the differences between their recipes.
std::string report_text(const std::vector<ReportedRun>& runs);
/// The same with curves, as one self-contained HTML page.
std::string report_page(const std::vector<ReportedRun>& runs);

}  // namespace sherd::engine
