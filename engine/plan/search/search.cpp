#include "engine/plan/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/human_text.h"
#include "engine/plan/search/candidates.h"
#include "engine/plan/search/layout_settings.h"
#include "engine/plan/search/tradeoff.h"
#include "engine/plan/time/from_recipe.h"
#include "engine/plan/time/step_comparison.h"
#include "engine/plan/world_plan.h"
#include "engine/recipe/offload.h"
#include "engine/recipe/suggest.h"

namespace sherd::engine {
namespace {

// Layouts that are kept for the second part; more wouldn't be looked at.
constexpr std::size_t kMostKept = 20'000;

std::set<SearchKey> kept_keys(const std::vector<std::string>& keep) {
  std::set<SearchKey> kept;
  std::vector<std::string_view> names;
  for (const SearchKey key : all_search_keys()) names.push_back(key_of(key));
  for (const std::string& wanted : keep) {
    const std::size_t before = kept.size();
    for (const SearchKey key : all_search_keys()) {
      const std::string_view name = key_of(key);
      if (name == wanted || name.starts_with(wanted + ".")) kept.insert(key);
    }
    if (kept.size() > before) continue;
    if (std::ranges::find(names, wanted) != names.end()) continue;
    const std::string_view meant = nearest(wanted, names);
    throw UsageError("--keep {}: a search doesn't change this key{}", wanted,
                     meant.empty() ? fmt::format(". It changes {}.", joined(names, ", ", " and "))
                                   : fmt::format("; did you mean \"{}\"?", meant));
  }
  return kept;
}

// Two layouts that agree here are the same to a reader.
auto look_of(const Layout& layout) {
  return std::tuple(layout.tensor, layout.context, layout.pipeline, layout.shard, layout.replicate,
                    layout.expert, layout.stage, layout.sequences, layout.again);
}

// Whether `one` needs no less memory than `other`: it keeps more of as many sequences or more.
bool needs_no_less(const Layout& one, const Layout& other) {
  const auto frame = [](const Layout& layout) {
    return std::tuple(layout.tensor, layout.context, layout.pipeline, layout.order, layout.chunks,
                      layout.shard, layout.replicate, layout.expert, layout.stage);
  };
  return frame(one) == frame(other) && one.sequences >= other.sequences &&
         one.again <= other.again && one.reshards <= other.reshards &&
         one.sequence_parallel <= other.sequence_parallel &&
         one.reduces_every_micro_step <= other.reduces_every_micro_step &&
         std::min(one.micro_batches, one.pipeline) >= std::min(other.micro_batches, other.pipeline);
}

class Search {
 public:
  Search(const ResolvedRecipe& recipe, const SearchRequest& request, const StepRates& rates);
  SearchResult run();

 private:
  std::vector<StepShape> forms(bool offload) const;
  double seconds_of(const Layout& layout, std::vector<StepShape>& forms);
  std::vector<Timed> fastest(bool offload);
  void take(const std::vector<Timed>& layouts, bool offload);
  void explore(bool offload);
  std::optional<FoundLayout> planned(const Layout& layout, bool offload);
  FoundLayout found(const ResolvedRecipe& recipe);
  std::optional<std::int64_t> planned_bytes(const ResolvedRecipe& recipe) const;
  std::int64_t share_of_limit() const {
    return result_.limit.shared ? result_.limit.bytes / result_.ranks : result_.limit.bytes;
  }

  ResolvedRecipe recipe_;
  const SearchRequest& request_;
  const StepRates& rates_;
  StepTimes times_;
  SearchSpace space_;
  SearchResult result_;
  Tradeoff tradeoff_;
};

std::int64_t ranks_per_machine(const ResolvedRecipe& recipe, const SearchRequest& request) {
  return request.cluster ? request.cluster->ranks_per_machine : recipe.values.world_size();
}

DeviceLimit limit_of(const ResolvedRecipe& recipe, const SearchRequest& request) {
  if (request.device_memory || !request.cluster) {
    return device_limit(recipe.values, request.device_memory);
  }
  const Cluster& cluster = *request.cluster;
  if (cluster.on_cpus()) {
    if (cluster.memory_bytes == 0) {
      throw UsageError(
          "the cluster's file gives no memory, and a CPU's isn't known from its name. "
          "Add memory: 16GiB, of a rank.");
    }
    return {cluster.memory_bytes, false, "the cluster's file"};
  }
  const std::int64_t bytes = cluster.memory_bytes > 0   ? cluster.memory_bytes
                             : cluster.device == "H200" ? h200_rates().memory_bytes
                                                        : h100_rates().memory_bytes;
  // Groups of data, tensor, context and pipeline ranks, each with a machine's other GPUs.
  const std::int64_t reserve = library_reserve_bytes(8, false, {8, 8, 8});
  return {bytes - reserve, false,
          fmt::format("{} of each {}, less {} for libraries", human_bytes(bytes), cluster.device,
                      human_bytes(reserve))};
}

Search::Search(const ResolvedRecipe& recipe, const SearchRequest& request, const StepRates& rates)
    : recipe_(request.cluster ? on_cluster(recipe, *request.cluster) : recipe),
      request_(request),
      rates_(rates),
      times_(rates, ranks_per_machine(recipe, request)) {
  space_.own = step_shape(recipe_.values);
  result_.ranks = request.cluster ? request.cluster->ranks() : recipe.values.world_size();
  result_.ranks_per_machine = ranks_per_machine(recipe, request);
  space_.ranks = result_.ranks;
  space_.per_machine = result_.ranks_per_machine;
  space_.global_batch = recipe.values.training.global_batch_size;
  space_.kept = kept_keys(request.keep);
  result_.limit = limit_of(recipe_, request);
  result_.rates = rates.name;
  result_.assumed = rates.assumed;
  result_.tokens = request.tokens;
}

FoundLayout Search::found(const ResolvedRecipe& recipe) {
  FoundLayout layout{.settings = {}, .recipe = recipe, .time = {}};
  const StepShape step = step_shape(recipe.values);
  layout.time = times_.of(step);
  layout.seconds = layout.time.total();
  layout.tokens_per_s = step.tokens_per_step() / layout.seconds;
  if (rates_.stated_flops > 0.0) {
    layout.mfu = layout.tokens_per_s * flops_per_token(PlannedRecipe(recipe.values).options.model) /
                 (rates_.stated_flops * static_cast<double>(recipe.values.world_size()));
  }
  return layout;
}

// The recipe's step, or the one with its optimizer state elsewhere; then, if the search may choose
// who updates a state on the host, that step by the host's cores.
std::vector<StepShape> Search::forms(bool offload) const {
  Recipe recipe = recipe_.values;
  auto& zero = recipe.zero_optimization;
  if (offload) zero.offload_optimizer = offload_device(recipe);
  std::vector<StepShape> forms = {step_shape(recipe)};
  if (offload_of(recipe).on_host && !space_.keeps(SearchKey::kOffloadUpdate) &&
      zero.offload_update == OffloadDevice::kNone) {
    zero.offload_update = OffloadDevice::kCpu;
    forms.push_back(step_shape(recipe));
  }
  return forms;
}

// Of the forms that a layout may have.
double Search::seconds_of(const Layout& layout, std::vector<StepShape>& forms) {
  double least = std::numeric_limits<double>::infinity();
  const bool weights_are_there =
      layout.stage < 3 ? forms[0].dtype != DType::kF32
                       : recipe_.values.zero_optimization.offload_param != OffloadDevice::kNone;
  for (StepShape& step : forms) {
    if (step.host_updates && !weights_are_there && forms.size() > 1) continue;
    step.layout = layout;
    least = std::min(least, times_.of(step).total());
  }
  return least;
}

std::vector<Timed> Search::fastest(bool offload) {
  std::vector<Timed> all;
  std::vector<StepShape> steps = forms(offload);
  StepShape step = steps[0];
  const bool on_disk = step.disk_bytes > 0.0;
  const auto limit = static_cast<double>(share_of_limit());
  const auto shorten = [&all] {
    if (all.size() <= kMostKept) return;
    std::ranges::nth_element(all, all.begin() + kMostKept, {}, &Timed::seconds);
    all.resize(kMostKept);
  };
  for_each_layout(space_, [&](const Layout& layout) {
    ++result_.layouts;
    step.layout = layout;
    const double bytes = least_bytes(step, on_disk, result_.limit.shared);
    if (bytes > limit) {
      ++result_.too_large;
      return;
    }
    all.push_back({layout, seconds_of(layout, steps)});
    if (request_.tradeoff > 0) tradeoff_.see(all.back(), bytes);
    if (all.size() > 4 * kMostKept) shorten();
  });
  shorten();
  std::ranges::stable_sort(all, {}, &Timed::seconds);
  return all;
}

// Nothing if a part of the model can't be divided so, which only its plan finds out.
std::optional<std::int64_t> Search::planned_bytes(const ResolvedRecipe& recipe) const {
  try {
    return needed_bytes(plan_world(recipe.values, PlanDetail::kSums), result_.limit);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

void Search::take(const std::vector<Timed>& layouts, bool offload) {
  std::set<decltype(look_of(Layout{}))> taken;
  std::vector<Layout> too_large;
  for (const Timed& timed : layouts) {
    if (std::ssize(result_.best) >= request_.top) return;
    if (taken.contains(look_of(timed.layout))) continue;
    const bool is_larger = std::ranges::any_of(
        too_large, [&](const Layout& other) { return needs_no_less(timed.layout, other); });
    if (is_larger) continue;
    if (result_.planned >= kMostPlans) {
      result_.gave_up = true;
      return;
    }
    std::optional<FoundLayout> layout = planned(timed.layout, offload);
    if (!layout) {
      ++result_.refused;
      continue;
    }
    ++result_.planned;
    if (layout->needed_bytes > result_.limit.bytes) {
      ++result_.planned_too_large;
      too_large.push_back(timed.layout);
      continue;
    }
    taken.insert(look_of(timed.layout));
    result_.best.push_back(std::move(*layout));
  }
}

// Nothing if a rule refuses the layout. A state on the host is updated where it is faster.
std::optional<FoundLayout> Search::planned(const Layout& layout, bool offload) {
  const auto planned_with = [this](const auto& settings) -> std::optional<FoundLayout> {
    if (!settings) return std::nullopt;
    const std::optional<std::int64_t> needed = planned_bytes(settings->recipe);
    if (!needed) return std::nullopt;
    FoundLayout result = found(settings->recipe);
    result.settings = settings->settings;
    result.needed_bytes = *needed;
    return result;
  };
  const auto settings = settings_of(recipe_, layout, offload);
  auto result = planned_with(settings);
  if (!result || space_.keeps(SearchKey::kOffloadUpdate)) return result;
  auto by_cores = planned_with(updated_by_cores(*settings));
  return by_cores && by_cores->seconds < result->seconds ? by_cores : result;
}

// Each is faster than all that need less memory.
void Search::explore(bool offload) {
  if (request_.tradeoff == 0) return;
  std::vector<FoundLayout> all = result_.best;
  all.push_back(result_.own);
  for (const Timed& timed : tradeoff_.candidates(request_.tradeoff)) {
    if (auto layout = planned(timed.layout, offload)) all.push_back(std::move(*layout));
  }
  std::ranges::stable_sort(all, {}, [](const FoundLayout& layout) {
    return std::tuple(layout.needed_bytes, layout.seconds);
  });
  result_.tradeoff.clear();
  for (FoundLayout& layout : all) {
    const auto& front = result_.tradeoff;
    if (!front.empty() && layout.seconds >= front.back().seconds) continue;
    result_.tradeoff.push_back(std::move(layout));
  }
}

SearchResult Search::run() {
  result_.own = found(recipe_);
  result_.own.needed_bytes =
      needed_bytes(plan_world(recipe_.values, PlanDetail::kSums), result_.limit);
  result_.own_fits = result_.own.needed_bytes <= result_.limit.bytes;
  take(fastest(false), false);
  explore(false);
  if (result_.best.empty() && !space_.keeps(SearchKey::kOffloadOptimizer) &&
      space_.own.disk_bytes == 0.0) {
    tradeoff_ = {};
    take(fastest(true), true);
    explore(true);
    if (!result_.best.empty()) {
      std::ranges::move(assumed_of_offload(result_.best[0].recipe.values, request_.cluster, rates_),
                        std::back_inserter(result_.assumed));
    }
  }
  std::ranges::stable_sort(result_.best, {}, &FoundLayout::seconds);
  return std::move(result_);
}

}  // namespace

std::string FoundLayout::command() const {
  std::string text;
  for (const auto& [key, value] : settings) {
    text += fmt::format("{}--set {}={}", text.empty() ? "" : " ", key, value);
  }
  return text;
}

ResolvedRecipe on_cluster(const ResolvedRecipe& recipe, const Cluster& cluster) {
  const DeviceChoice device = cluster.on_cpus() ? DeviceChoice::kCpu : DeviceChoice::kCuda;
  if (recipe.values.run.device == device) return recipe;
  const std::vector<std::string_view> keys = {"run.device"};
  auto changed = with_changes(recipe, keys, [&](Recipe& values) { values.run.device = device; });
  if (!changed) {
    throw UsageError(
        "the cluster's device is {}, which the recipe can't use. Run sherd plan with "
        "--set run.device={} to see why.",
        cluster.device, cluster.on_cpus() ? "cpu" : "cuda");
  }
  return *changed;
}

SearchResult search_layouts(const ResolvedRecipe& recipe, const SearchRequest& request,
                            const StepRates& rates) {
  constexpr std::string_view kServers = "parallelism.parameter_servers";
  if (recipe.values.parallelism.parameter_servers > 0) {
    throw UsageError(
        "{} is {}, but layouts with parameter servers aren't searched. Search with --set {}=0; "
        "--cluster without --search predicts this recipe's time.",
        kServers, recipe.values.parallelism.parameter_servers, kServers);
  }
  if (const std::string_view key = key_without_times(recipe.values); !key.empty()) {
    throw UsageError("{} is set, but the times of such trainings can't be predicted yet.", key);
  }
  return Search(recipe, request, rates).run();
}

}  // namespace sherd::engine
