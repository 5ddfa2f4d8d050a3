/// Finds the layouts of a recipe that take the least time and fit into memory. Model, data, global
/// batch, precision and everything lossy stay as the recipe says.
///
///   1. every layout that the sizes allow (candidates.h), its time (engine/plan/time) and a lower
///      bound of its memory; those above the limit are dropped
///   2. in the order of time: resolved by all of the recipe's rules, and its memory planned exactly
///   3. the first few that differ in more than a schedule or a way to gather
///
/// So nothing that is returned is refused or too large when it is run.
///
/// Errors   UsageError: a key to keep that isn't searched; parameter servers.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/memory_report.h"
#include "engine/plan/time/from_recipe.h"
#include "engine/plan/time/step_time.h"

namespace sherd::engine {

struct SearchRequest {
  std::optional<Cluster> cluster{};  ///< none: the recipe's ranks on its own device
  std::vector<std::string> keep{};   ///< keys, or blocks of them
  int top = 3;
  double tokens = 0.0;  ///< to train on; 0: unknown
  std::optional<std::int64_t> device_memory{};
  std::size_t tradeoff = 0;  ///< plans for `SearchResult::tradeoff`; 0: none
};

struct FoundLayout {
  std::vector<std::pair<std::string, std::string>> settings;  ///< key and value
  ResolvedRecipe recipe;
  StepTime time;
  double seconds = 0.0, tokens_per_s = 0.0, mfu = 0.0;  ///< mfu: 0 if the peak is unknown
  std::int64_t needed_bytes = 0;                        ///< compared with the limit

  std::string command() const;  ///< "--set KEY=VALUE --set ..."
};

struct SearchResult {
  FoundLayout own;  ///< without settings
  bool own_fits = false;
  std::vector<FoundLayout> best;      ///< the fastest first
  std::vector<FoundLayout> tradeoff;  ///< from the least memory on, each faster than those before
  DeviceLimit limit;
  std::string rates;                 ///< whose they are: "H100 SXM 80GB"
  std::vector<std::string> assumed;  ///< rates that nobody measured
  std::int64_t ranks = 0, ranks_per_machine = 0;
  std::int64_t layouts = 0;                                      ///< that the sizes allow
  std::int64_t too_large = 0;                                    ///< of them, by the lower bound
  std::int64_t refused = 0, planned = 0, planned_too_large = 0;  ///< of the fastest
  bool gave_up = false;                                          ///< after kMostPlans plans
  double tokens = 0.0;
};

inline constexpr int kMostPlans = 300;

/// The recipe with the cluster's kind of device.
/// Errors   UsageError if the recipe can't use it.
ResolvedRecipe on_cluster(const ResolvedRecipe& recipe, const Cluster& cluster);

SearchResult search_layouts(const ResolvedRecipe& recipe, const SearchRequest& request,
                            const StepRates& rates);

std::string search_text(const SearchResult& result);
std::string search_json(const SearchResult& result);  ///< one object; ends with a newline
/// A page of HTML with time against memory: the recipe, the best and the trade-off.
std::string search_page(const SearchResult& result, const std::string& name);

}  // namespace sherd::engine
