#include "engine/plan/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/launch/launch.h"
#include "engine/plan/world_plan.h"
#include "engine/train/from_recipe.h"
#include "engine/train/token_feed.h"
#include "engine/train/training_step.h"

namespace sherd::engine {
namespace {

void check_can_be_fed(const Recipe& recipe, const TrainingOptions& options) {
  const auto refuse = [](std::string_view what) {
    throw UsageError(
        "sherd tune makes up its tokens and can't measure {}. Leave it out with --set.", what);
  };
  if (device_traits(recipe).kind != DeviceKind::kCpu) {
    throw UsageError(
        "sherd tune runs on CPUs only so far: --set run.device=cpu, or use sherd plan --search.");
  }
  if (options.separate_documents) refuse("documents that are kept apart (data.documents)");
  if (options.preference.active()) refuse("a loss on preferences (preference)");
  if (recipe.distillation.active()) refuse("a teacher (distillation)");
  if (options.offloads()) refuse("offloaded state (zero_optimization.offload_*)");
  if (options.model.adapter.active()) refuse("adapters, whose base is a file (adapter)");
}

void fill(const data::Batch& batch, std::int64_t vocab_size) {
  auto* const inputs = batch.inputs.as<std::int32_t>();
  auto* const targets = batch.targets.as<std::int32_t>();
  for (std::int64_t i = 0; i < batch.inputs.numel; ++i) {
    inputs[i] = static_cast<std::int32_t>(i * 7919 % vocab_size);
    targets[i] = static_cast<std::int32_t>((i + 1) * 7919 % vocab_size);
  }
}

}  // namespace

std::vector<double> measured_steps(const ResolvedRecipe& recipe, int steps) {
  const PlannedRecipe planned(recipe.values);
  check_can_be_fed(recipe.values, planned.options);
  const TrainingOptions options = options_on_device(recipe.values);
  LaunchOptions launch = launch_options(recipe.values, choose_machine(recipe.values));
  const WorldPlan plan = plan_world(planned);
  launch.plan = [&](int r) { return plan.of(r); };
  std::vector<double> seconds;
  run_ranks(launch, [&](sharding::Rank& rank) {
    ShardedModel model(options, rank);
    TrainingStep training(options, model);
    // Made-up tokens are all of the first source.
    training.source_of_row = [](std::int64_t, std::int64_t) { return 0; };
    training.targets_of_sources = [&](std::int64_t) {
      std::vector<std::int64_t> targets(static_cast<std::size_t>(options.num_loss_sources));
      if (!targets.empty()) targets[0] = options.tokens_per_step(rank.data_degree());
      return targets;
    };
    TokenFeed feed(options, rank, [&](std::int64_t, std::int64_t, const data::Batch& batch) {
      fill(batch, options.model.vocab_size);
    });
    rank.guard([&] {
      feed.start(0);
      for (int step = 0; step <= steps; ++step) {
        const auto begin = Clock::now();
        training.run(step,
                     [&](std::int64_t, std::int64_t micro) { return feed.next(step, micro); });
        if (rank.rank != 0 || step == 0) continue;
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
    });
  });
  return seconds;
}

double TunedLayout::median() const {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
}

const TunedLayout& TuneResult::best() const {
  return *std::ranges::min_element(layouts, {}, &TunedLayout::median);
}

TuneResult tune(const ResolvedRecipe& recipe, const TuneRequest& request, const StepRates& rates) {
  check_can_be_fed(recipe.values, PlannedRecipe(recipe.values).options);
  SearchRequest wanted = request.search;
  wanted.keep.emplace_back("zero_optimization.offload_optimizer");
  const SearchResult found = search_layouts(recipe, wanted, rates);
  TuneResult result{.layouts = {}, .rates = found.rates};
  if (found.own_fits) result.layouts.push_back({found.own});
  for (const FoundLayout& layout : found.best) {
    if (!layout.settings.empty() || !found.own_fits) result.layouts.push_back({layout});
  }
  if (result.layouts.empty()) {
    throw UsageError("no layout fits into {} bytes; see sherd plan --search.", found.limit.bytes);
  }
  for (int round = 0; round < request.rounds; ++round) {
    for (TunedLayout& tuned : result.layouts) {
      const std::vector<double> seconds = measured_steps(tuned.layout.recipe, request.steps);
      tuned.seconds.insert(tuned.seconds.end(), seconds.begin(), seconds.end());
    }
    if (request.on_message) {
      request.on_message(fmt::format("round {} of {} done", round + 1, request.rounds));
    }
  }
  return result;
}

std::string tune_text(const TuneResult& result) {
  std::string text = fmt::format("{:>10}{:>12}{:>9}  layout\n", "measured", "predicted", "range");
  for (const TunedLayout& tuned : result.layouts) {
    const auto [least, most] = std::ranges::minmax_element(tuned.seconds);
    const std::string name =
        tuned.layout.settings.empty() ? "the recipe as it is" : tuned.layout.command();
    text += fmt::format("{:>8.4g} s {:>9.4g} s{:>8.0f}%  {}{}\n", tuned.median(),
                        tuned.layout.seconds, 100.0 * (*most - *least) / tuned.median(), name,
                        &tuned == &result.best() ? "  <- fastest" : "");
  }
  return text;
}

std::string tuned_recipe(const TuneResult& result, const std::string& source) {
  const TunedLayout& best = result.best();
  std::string text = fmt::format(
      "# Written by `sherd tune {}`. Rates: {}.\n"
      "# A step takes {:.4g} s here, the median of {} steps; {} layouts took turns.\n",
      source, result.rates, best.median(), best.seconds.size(), result.layouts.size());
  const TunedLayout& first = result.layouts.front();
  if (first.layout.settings.empty()) {
    text += fmt::format("# The recipe as it was takes {:.4g} s.\n", first.median());
  }
  for (const auto& [key, value] : best.layout.settings) {
    text += fmt::format("# Changed: {}: {}\n", key, value);
  }
  return text + best.layout.recipe.yaml();
}

}  // namespace sherd::engine
