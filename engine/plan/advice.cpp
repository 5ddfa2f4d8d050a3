#include "engine/plan/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "engine/plan/step_cost.h"
#include "engine/plan/strategy.h"

namespace sherd::engine {
namespace {

constexpr const char* kSync = "zero_optimization.grad_sync";
constexpr const char* kGlobalBatch = "training.global_batch_size";
constexpr const char* kRanks = "parallelism.data_parallel_shard_degree";

constexpr std::int64_t kMostSequences = 1'000'000;  // the range of training.micro_batch_size

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(i);
    if (i * i != number) high.push_back(number / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// A strategy's change, if it fits. Otherwise it is too large, or the recipe's rules refuse it.
struct Tried {
  std::optional<Change> change{};
  bool refused = false;
};

/// One recipe and what becomes of it under other strategies.
class Variants {
 public:
  Variants(const ResolvedRecipe& recipe, const DeviceLimit& limit)
      : recipe_(recipe), limit_(limit) {}

  const ResolvedRecipe& own() const { return recipe_; }
  const Recipe& recipe() const { return recipe_.values; }
  const DeviceLimit& limit() const { return limit_; }
  BatchCut batch() const { return batch_cut_of(recipe_.values); }
  bool is_written(const char* key) const { return recipe_.origin(key).is_given(); }

  Tried tried(const Strategy& strategy, const BatchCut& wanted) const {
    auto variant = variant_of(recipe_, strategy, wanted);
    if (!variant) return {.refused = true};
    std::optional<PlannedRecipe> planned;
    const std::int64_t bytes = counted([&] {
      planned.emplace(variant->recipe.values);
      const std::int64_t least = plan_first_rank(*planned).arena_bytes();
      if (least > limit_.bytes) return least;
      const WorldPlan plan = plan_world(*planned, PlanDetail::kSums, [&](const WorldPlan& ranks) {
        return may_fit(ranks, limit_);
      });
      if (server_problem(variant->recipe.values, plan, limit_)) {
        return std::numeric_limits<std::int64_t>::max();
      }
      return needed_bytes(plan, limit_);
    });
    if (bytes > limit_.bytes) return {};
    return {.change = change(std::move(*variant), *planned, bytes)};
  }

  /// What a plan counts; the largest number if it needs more bytes than can be counted.
  template <class Count>
  static std::int64_t counted(const Count& count) {
    try {
      return count();
    } catch (const UsageError&) {
      return std::numeric_limits<std::int64_t>::max();
    }
  }

 private:
  Change change(Variant variant, const PlannedRecipe& planned, std::int64_t bytes) const {
    if (!own_cost_) own_cost_ = step_cost(recipe_.values);
    const StepCost cost = step_cost(planned);
    Change change;
    change.needed_bytes = bytes;
    change.flops_ratio = cost.flops / own_cost_->flops;
    change.sent_ratio = own_cost_->sent > 0.0 ? cost.sent / own_cost_->sent : 0.0;
    change.cost = cost.total / own_cost_->total;
    for (const auto& [key, value] : variant.settings) {
      if (key == kRanks && recipe_.origin(kRanks).kind != Origin::Kind::kSet) {
        change.arguments.insert(change.arguments.end(), {"--ranks", value});
      } else {
        change.arguments.insert(change.arguments.end(), {"--set", key + "=" + value});
      }
    }
    change.settings = std::move(variant.settings);
    return change;
  }

  const ResolvedRecipe& recipe_;
  const DeviceLimit& limit_;
  mutable std::optional<StepCost> own_cost_;
};

/// Ways to change one thing, the cheapest first. In each strategy ranks and micro_batch say how the
/// batch is cut up; the rest of the cut follows.
using Dimension = std::vector<Strategy>;

// Ranks come last, since the user's machines are usually given.
std::vector<Dimension> dimensions_of(const Variants& variants, bool shared_limit) {
  const Recipe& recipe = variants.recipe();
  const auto& zero = recipe.zero_optimization;
  const BatchCut batch = variants.batch();
  Dimension micro, stage, recompute, sync, reshard, prefetch, staging, offload, ranks;
  const auto smaller = divisors(batch.micro_batch * batch.accumulation);
  for (auto size = smaller.rbegin(); size != smaller.rend(); ++size) {
    if (*size < batch.micro_batch) micro.push_back({.micro_batch = *size});
  }
  for (std::int64_t s = zero.stage + 1; s <= 3; ++s) stage.push_back({.stage = s});
  const Recompute mode = recipe.activation_checkpointing.mode;
  if (mode == Recompute::kNone) recompute.push_back({.recompute = Recompute::kSelective});
  if (mode != Recompute::kFull) recompute.push_back({.recompute = Recompute::kFull});
  // The ones below save nothing before their stage, but may together with it.
  if (zero.grad_sync == GradSync::kBoundary && (zero.stage >= 2 || variants.is_written(kSync))) {
    sync.push_back({.grad_sync = GradSync::kEveryMicroStep});
  }
  if (!zero.reshard_after_forward) reshard.push_back({.reshard_after_forward = true});
  for (std::int64_t depth = zero.prefetch_depth; depth > 0;) {
    depth /= 2;
    prefetch.push_back({.prefetch_depth = depth});
  }
  // Down to the room of one write: updates then wait for the disk.
  for (const std::int64_t mebibytes : {1024, 256, 64, 16, 4}) {
    const std::int64_t now = recipe.checkpoint.staging_mib;
    if (!recipe.checkpoint.saves() || (now > 0 && mebibytes >= now)) continue;
    staging.push_back({.staging_mib = mebibytes});
  }
  const bool on_cpu = PlannedRecipe(recipe).device.kind == DeviceKind::kCpu;
  const OffloadDevice elsewhere = on_cpu ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  Strategy offloaded;
  if (zero.offload_optimizer == OffloadDevice::kNone) {
    offloaded.offload_optimizer = elsewhere;
    offload.push_back(offloaded);
  }
  if (zero.offload_param == OffloadDevice::kNone) {
    offloaded.offload_param = elsewhere;
    offload.push_back(offloaded);
  }
  for (const std::int64_t count : divisors(batch.ranks * batch.accumulation)) {
    if (count > batch.ranks || (shared_limit && count < batch.ranks)) {
      ranks.push_back({.ranks = count});
    }
  }
  std::vector<Dimension> all = {micro,    stage,   recompute, sync, reshard,
                                prefetch, staging, offload,   ranks};
  std::erase_if(all, [](const Dimension& dimension) { return dimension.empty(); });
  return all;
}

using Choices = std::vector<const Strategy*>;

struct Combination {
  Strategy strategy;
  BatchCut batch;
};

// Nothing if the global batch can't be cut so.
std::optional<Combination> combination(const Variants& variants, const Choices& choices) {
  Strategy all;
  for (const Strategy* choice : choices) all = all.with(*choice);
  BatchCut batch = variants.batch();
  const std::int64_t global = batch.ranks * batch.micro_batch * batch.accumulation;
  batch.micro_batch = all.micro_batch.value_or(batch.micro_batch);
  batch.ranks = all.ranks.value_or(batch.ranks);
  if (global % (batch.micro_batch * batch.ranks) != 0) return std::nullopt;
  batch.accumulation = global / (batch.micro_batch * batch.ranks);
  all.micro_batch.reset();  // set only if the cut doesn't follow without it
  return Combination{all, batch};
}

Tried combined(const Variants& variants, const Choices& choices) {
  const auto all = combination(variants, choices);
  return all ? variants.tried(all->strategy, all->batch) : Tried{.refused = true};
}

bool is_allowed(const Variants& variants, const Choices& choices) {
  const auto all = combination(variants, choices);
  return all && variant_of(variants.own(), all->strategy, all->batch);
}

void keep_cheaper(std::optional<Change>& best, std::optional<Change> other) {
  if (other && (!best || other->cost < best->cost)) best = std::move(other);
}

std::vector<Change> single_changes(const Variants& variants, const std::vector<Dimension>& all) {
  std::vector<Change> changes;
  for (const Dimension& dimension : all) {
    for (const Strategy& strategy : dimension) {
      auto change = combined(variants, {&strategy}).change;
      if (!change) continue;
      changes.push_back(std::move(*change));
      break;
    }
  }
  return changes;
}

// Strategies need less and less, so the last one that the rules allow decides.
bool may_fit_with(const Variants& variants, const Strategy& first, const Dimension& seconds) {
  for (auto second = seconds.rbegin(); second != seconds.rend(); ++second) {
    const Tried tried = combined(variants, {&first, &*second});
    if (!tried.refused) return tried.change.has_value();
  }
  return false;
}

std::vector<Change> double_changes(const Variants& variants, const std::vector<Dimension>& all) {
  std::vector<Change> changes;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      std::optional<Change> best;
      for (const Strategy& first : all[a]) {
        // A look at the last one saves the others, but for ranks that share one memory.
        const bool ordered = !all[b].back().ranks || !variants.limit().shared;
        if (ordered && !may_fit_with(variants, first, all[b])) continue;
        for (const Strategy& second : all[b]) {
          auto change = combined(variants, {&first, &second}).change;
          if (!change) continue;
          keep_cheaper(best, std::move(change));
          break;
        }
      }
      if (best) changes.push_back(std::move(*best));
    }
  }
  return changes;
}

// The furthest strategy of everything but the ranks. Where the rules refuse them together: of each
// dimension the furthest that they allow with those before it, or none.
Choices furthest(const Variants& variants, const std::vector<Dimension>& all) {
  Choices last, allowed;
  for (const Dimension& dimension : all) {
    if (!dimension.back().ranks) last.push_back(&dimension.back());
  }
  if (is_allowed(variants, last)) return last;
  for (const Dimension& dimension : all) {
    if (dimension.back().ranks) continue;
    for (auto strategy = dimension.rbegin(); strategy != dimension.rend(); ++strategy) {
      allowed.push_back(&*strategy);
      if (is_allowed(variants, allowed)) break;
      allowed.pop_back();
    }
  }
  return allowed;
}

// With other ranks only if that isn't enough.
std::vector<Change> change_of_all(const Variants& variants, const std::vector<Dimension>& all) {
  Choices choices = furthest(variants, all);
  if (auto change = combined(variants, choices).change) return {std::move(*change)};
  for (const Dimension& dimension : all) {
    if (!dimension.back().ranks) continue;
    choices.push_back(nullptr);
    for (const Strategy& ranks : dimension) {
      choices.back() = &ranks;
      if (auto change = combined(variants, choices).change) return {std::move(*change)};
    }
  }
  return {};
}

// Without scratch, whose size may jump either way: grows with the micro-batch for sure.
std::int64_t least_need(const WorldPlan& world, const DeviceLimit& limit) {
  const auto of = [](const MemoryPlan& plan) {
    std::int64_t most = 0;
    for (const BytesByCategory& phase : plan.by_phase()) {
      most = std::max(most, sum(phase) - phase[static_cast<std::size_t>(Category::kWorkspace)]);
    }
    return most;
  };
  if (!limit.shared) return of(world.worst());
  std::int64_t all = 0;
  for (const WorldPlan::EqualRanks& group : world.equal_ranks())
    all += group.num_ranks * of(group.plan);
  return all;
}

// The need without scratch says which sizes can't fit; of the others the largest that does.
std::optional<ValueLimit> largest_free_micro_batch(const Variants& variants) {
  BatchCut batch = variants.batch();
  const auto may_fit = [&](std::int64_t micro) {
    batch.micro_batch = micro;
    const auto variant = variant_of(variants.own(), {}, batch);
    if (!variant) return false;
    return Variants::counted([&] {
             return least_need(plan_world(variant->recipe.values, PlanDetail::kSums),
                               variants.limit());
           }) <= variants.limit().bytes;
  };
  std::int64_t fits = 0, too_large = kMostSequences + 1;
  while (fits + 1 < too_large) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    (may_fit(middle) ? fits : too_large) = middle;
  }
  for (; fits > 0; --fits) {
    batch.micro_batch = fits;
    if (auto change = variants.tried({}, batch).change) return ValueLimit{fits, std::move(*change)};
  }
  return std::nullopt;
}

bool sets_ranks(const Change& change) {
  return std::any_of(change.settings.begin(), change.settings.end(),
                     [](const auto& setting) { return setting.first == kRanks; });
}

}  // namespace

std::string Change::summary() const {
  std::string text;
  for (const auto& [key, value] : settings) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : " with ", key, value);
  }
  return text;
}

std::string Change::command() const {
  std::string text;
  for (const std::string& argument : arguments) text += (text.empty() ? "" : " ") + argument;
  return text;
}

std::vector<Change> cheapest_changes(const ResolvedRecipe& recipe, const DeviceLimit& limit) {
  const Variants variants(recipe, limit);
  const std::vector<Dimension> all = dimensions_of(variants, limit.shared);
  std::vector<Change> changes = single_changes(variants, all);
  if (changes.empty()) changes = double_changes(variants, all);
  if (changes.empty()) changes = change_of_all(variants, all);
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::pair(sets_ranks(a), a.cost) < std::pair(sets_ranks(b), b.cost);
  });
  constexpr std::size_t kMostChanges = 5;
  if (changes.size() > kMostChanges) changes.resize(kMostChanges);
  return changes;
}

std::optional<ValueLimit> largest_micro_batch(const ResolvedRecipe& recipe,
                                              const DeviceLimit& limit) {
  const Variants variants(recipe, limit);
  if (!variants.is_written(kGlobalBatch)) return largest_free_micro_batch(variants);
  BatchCut batch = variants.batch();
  const std::int64_t sequences = batch.micro_batch * batch.accumulation;
  const std::vector<std::int64_t> sizes = divisors(sequences);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    batch.micro_batch = *size;
    batch.accumulation = sequences / *size;
    if (auto change = variants.tried({}, batch).change)
      return ValueLimit{*size, std::move(*change)};
  }
  return std::nullopt;
}

std::optional<ValueLimit> smallest_world(const ResolvedRecipe& recipe, const DeviceLimit& limit) {
  const Variants variants(recipe, limit);
  BatchCut batch = variants.batch();
  const std::int64_t sequences = batch.ranks * batch.accumulation;
  for (const std::int64_t ranks : divisors(sequences)) {
    batch.ranks = ranks;
    batch.accumulation = sequences / ranks;
    if (auto change = variants.tried({}, batch).change) {
      return ValueLimit{ranks * recipe.values.model_ranks(), std::move(*change)};
    }
  }
  return std::nullopt;
}

std::vector<std::pair<int, ResolvedRecipe>> at_every_stage(const ResolvedRecipe& recipe) {
  std::vector<std::pair<int, ResolvedRecipe>> stages;
  for (int stage = 0; stage <= 3; ++stage) {
    if (auto variant = variant_of(recipe, {.stage = stage}, batch_cut_of(recipe.values))) {
      stages.emplace_back(stage, std::move(variant->recipe));
    }
  }
  return stages;
}

}  // namespace sherd::engine
