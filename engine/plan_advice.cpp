#include "engine/plan_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "engine/recipe_fields.h"
#include "engine/recipe_values.h"
#include "engine/training_step.h"

namespace sherd::engine {
namespace {

constexpr const char* kStage = "zero_optimization.stage";
constexpr const char* kPrefetch = "zero_optimization.prefetch_depth";
constexpr const char* kReshard = "zero_optimization.reshard_after_forward";
constexpr const char* kSync = "zero_optimization.grad_sync";
constexpr const char* kRecompute = "activation_checkpointing.mode";
constexpr const char* kStaging = "checkpoint.staging_mib";
constexpr const char* kMicroBatch = "training.micro_batch_size";
constexpr const char* kAccumulation = "training.gradient_accumulation_steps";
constexpr const char* kGlobalBatch = "training.global_batch_size";
constexpr const char* kRanks = "parallelism.data_parallel_shard_degree";

constexpr std::int64_t kMostSequences = 1'000'000;  // the range of kMicroBatch

using Settings = std::vector<std::pair<std::string, std::string>>;

/// How a step's sequences are cut up; the product is the global batch.
struct Batch {
  std::int64_t ranks = 1, micro = 1, accumulation = 1;
  bool operator==(const Batch&) const = default;
};
Batch batch_of(const Recipe& recipe) {
  return {recipe.world_size(), recipe.training.micro_batch_size,
          recipe.training.gradient_accumulation_steps};
}

// What a person wrote, in the file or on the command line, as one text. What follows from other
// keys is left out, so that it follows anew.
std::string written_by_a_person(const ResolvedRecipe& recipe) {
  std::string yaml;
  std::string_view block;
  for (std::size_t row = 0; row < recipe_fields().size(); ++row) {
    const Field& field = recipe_fields()[row];
    const Origin::Kind kind = recipe.origins[row].kind;
    if (kind == Origin::Kind::kDefault || kind == Origin::Kind::kDerived) continue;
    if (field.block() != block) yaml += fmt::format("{}:\n", field.block());
    block = field.block();
    yaml += fmt::format("  {}: {}\n", field.name(), format_value(field, recipe.values));
  }
  return yaml;
}

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

struct Cost {
  double flops = 0.0, sent = 0.0, total = 0.0;
};

// All ranks together; see the header. Ranks send nearly the same (Muon's owners apart).
Cost cost_of(const Recipe& recipe) {
  const TrainingOptions options = training_options(recipe);
  const auto ranks = static_cast<int>(recipe.world_size());
  const auto traffic = training_step_traffic(options, ranks, 0);
  double gathered = 0.0;
  for (const sharding::Sent& sent : traffic.sent()) {
    if (sent.what == "parameters") gathered += static_cast<double>(sent.bytes);
  }
  const bool waits = options.placement.parameters_sharded && options.gather.prefetch_depth == 0;
  constexpr double kRecomputeFactors[] = {1.0, 1.02, 4.0 / 3.0};
  const double tokens = static_cast<double>(options.tokens_per_step(ranks));
  Cost cost;
  cost.flops = flops_per_token(options.model) * tokens *
               kRecomputeFactors[static_cast<std::size_t>(options.model.recompute)];
  cost.sent = static_cast<double>(traffic.total_bytes()) * ranks;
  const double exposed = 0.25 * cost.sent + (waits ? 0.75 * gathered * ranks : 0.0);
  cost.total =
      cost.flops * (1.0 + 128.0 / static_cast<double>(options.model.tokens())) + 1000.0 * exposed;
  if (recipe.checkpoint.saves() && recipe.checkpoint.staging_mib > 0) cost.total *= 1.01;
  return cost;
}

/// One recipe and what becomes of it with other settings.
class Variants {
 public:
  Variants(const ResolvedRecipe& recipe, const DeviceLimit& limit)
      : recipe_(recipe), limit_(limit), text_(written_by_a_person(recipe)) {}

  const Recipe& recipe() const { return recipe_.values; }
  const DeviceLimit& limit() const { return limit_; }
  Batch batch() const { return batch_of(recipe_.values); }
  bool is_written(const char* key) const {
    const Origin::Kind kind = recipe_.origin(key).kind;
    return kind != Origin::Kind::kDefault && kind != Origin::Kind::kDerived;
  }

  /// The recipe with `settings` and cut up as `batch`, if its rules allow it; `settings` becomes
  /// everything that a person has to set.
  std::optional<ResolvedRecipe> resolved(Settings& settings, const Batch& wanted) const {
    const Batch own = batch();
    Settings base = settings;
    if (wanted.ranks != own.ranks) base.emplace_back(kRanks, std::to_string(wanted.ranks));
    if (wanted == own) return attempt(settings = base, wanted);
    // The fewest keys from which the rest follows.
    const std::pair<std::string, std::string> micro = {kMicroBatch, std::to_string(wanted.micro)};
    const std::pair<std::string, std::string> accumulation = {kAccumulation,
                                                              std::to_string(wanted.accumulation)};
    for (const Settings& more :
         {Settings{}, Settings{micro}, Settings{accumulation}, Settings{micro, accumulation}}) {
      settings = base;
      settings.insert(settings.end(), more.begin(), more.end());
      if (auto found = attempt(settings, wanted)) return found;
    }
    return std::nullopt;
  }

  /// The variant, if it fits.
  std::optional<Change> fitting(Settings settings, const Batch& wanted) const {
    const auto variant = resolved(settings, wanted);
    if (!variant) return std::nullopt;
    try {
      const std::int64_t bytes = needed_bytes(plan_world(variant->values), limit_);
      if (bytes > limit_.bytes) return std::nullopt;
      return change(std::move(settings), variant->values, bytes);
    } catch (const UsageError&) {  // more bytes than can be counted
      return std::nullopt;
    }
  }

  Change change(Settings settings, const Recipe& variant, std::int64_t bytes) const {
    if (!own_cost_) own_cost_ = cost_of(recipe_.values);
    const Cost cost = cost_of(variant);
    Change change;
    change.needed_bytes = bytes;
    change.flops_ratio = cost.flops / own_cost_->flops;
    change.sent_ratio = own_cost_->sent > 0.0 ? cost.sent / own_cost_->sent : 0.0;
    change.cost = cost.total / own_cost_->total;
    for (const auto& [key, value] : settings) {
      if (key == kRanks && recipe_.origin(kRanks).kind != Origin::Kind::kSet) {
        change.arguments.insert(change.arguments.end(), {"--ranks", value});
      } else {
        change.arguments.insert(change.arguments.end(), {"--set", key + "=" + value});
      }
    }
    change.settings = std::move(settings);
    return change;
  }

 private:
  std::optional<ResolvedRecipe> attempt(const Settings& settings, const Batch& wanted) const {
    RecipeRequest request{
        .path = "recipe", .text = text_, .sets = {}, .ranks = {}, .reads_data = false};
    for (const auto& [key, value] : settings) request.sets.push_back(key + "=" + value);
    try {
      ResolvedRecipe variant = resolve_recipe(request);
      if (batch_of(variant.values) == wanted) return variant;
    } catch (const UsageError&) {  // the run would refuse it too
    }
    return std::nullopt;
  }

  const ResolvedRecipe& recipe_;
  const DeviceLimit& limit_;
  std::string text_;
  mutable std::optional<Cost> own_cost_;
};

/// One thing to change: settings, or another way to cut up the batch.
struct Move {
  Settings settings;
  std::int64_t micro = 0, ranks = 0;  ///< 0: as it is
};
/// Ways to change one thing, the cheapest first.
using Dimension = std::vector<Move>;

// Ranks last: whoever asks has the machines that they have.
std::vector<Dimension> dimensions_of(const Variants& variants, bool shared_limit) {
  const Recipe& recipe = variants.recipe();
  const auto& zero = recipe.zero_optimization;
  const Batch batch = variants.batch();
  Dimension micro, stage, recompute, sync, reshard, prefetch, staging, ranks;
  const auto smaller = divisors(batch.micro * batch.accumulation);
  for (auto size = smaller.rbegin(); size != smaller.rend(); ++size) {
    if (*size < batch.micro) micro.push_back({{}, *size, 0});
  }
  for (std::int64_t s = zero.stage + 1; s <= 3; ++s)
    stage.push_back({{{kStage, std::to_string(s)}}});
  if (recipe.activation_checkpointing.mode == Recompute::kNone) {
    recompute.push_back({{{kRecompute, "selective"}}});
  }
  if (recipe.activation_checkpointing.mode != Recompute::kFull) {
    recompute.push_back({{{kRecompute, "full"}}});
  }
  // Those below save nothing before the stage that they are about, but may together with it.
  if (zero.grad_sync == GradSync::kBoundary && (zero.stage >= 2 || variants.is_written(kSync))) {
    sync.push_back({{{kSync, "every_micro_step"}}});
  }
  if (!zero.reshard_after_forward) reshard.push_back({{{kReshard, "true"}}});
  for (std::int64_t depth = zero.prefetch_depth; depth > 0;) {
    depth /= 2;
    prefetch.push_back({{{kPrefetch, std::to_string(depth)}}});
  }
  // Down to the room of one write: updates then wait for the disk.
  for (const std::int64_t mebibytes : {1024, 256, 64, 16, 4}) {
    const std::int64_t now = recipe.checkpoint.staging_mib;
    if (!recipe.checkpoint.saves() || (now > 0 && mebibytes >= now)) continue;
    staging.push_back({{{kStaging, std::to_string(mebibytes)}}});
  }
  for (const std::int64_t count : divisors(batch.ranks * batch.accumulation)) {
    if (count > batch.ranks || (shared_limit && count < batch.ranks)) {
      ranks.push_back({{}, 0, count});
    }
  }
  std::vector<Dimension> all = {micro, stage, recompute, sync, reshard, prefetch, staging, ranks};
  std::erase_if(all, [](const Dimension& dimension) { return dimension.empty(); });
  return all;
}

std::optional<Change> combined(const Variants& variants, const std::vector<const Move*>& moves) {
  Settings settings;
  Batch batch = variants.batch();
  const std::int64_t global = batch.ranks * batch.micro * batch.accumulation;
  for (const Move* move : moves) {
    settings.insert(settings.end(), move->settings.begin(), move->settings.end());
    if (move->micro > 0) batch.micro = move->micro;
    if (move->ranks > 0) batch.ranks = move->ranks;
  }
  if (global % (batch.micro * batch.ranks) != 0) return std::nullopt;
  batch.accumulation = global / (batch.micro * batch.ranks);
  return variants.fitting(std::move(settings), batch);
}

void keep_cheaper(std::optional<Change>& best, std::optional<Change> other) {
  if (other && (!best || other->cost < best->cost)) best = std::move(other);
}

std::vector<Change> single_changes(const Variants& variants, const std::vector<Dimension>& all) {
  std::vector<Change> changes;
  for (const Dimension& dimension : all) {
    for (const Move& move : dimension) {
      auto change = combined(variants, {&move});
      if (!change) continue;
      changes.push_back(std::move(*change));
      break;
    }
  }
  return changes;
}

std::vector<Change> double_changes(const Variants& variants, const std::vector<Dimension>& all) {
  std::vector<Change> changes;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      std::optional<Change> best;
      for (const Move& first : all[a]) {
        // Moves need less and less, but for ranks that share one memory: a look at the last one
        // saves the others.
        const bool ordered = all[b].back().ranks == 0 || !variants.limit().shared;
        if (ordered && !combined(variants, {&first, &all[b].back()})) continue;
        for (const Move& second : all[b]) {
          auto change = combined(variants, {&first, &second});
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

// The furthest move of everything but the ranks; with other ranks only if that isn't enough.
std::vector<Change> change_of_all(const Variants& variants, const std::vector<Dimension>& all) {
  std::vector<const Move*> moves;
  for (const Dimension& dimension : all) {
    if (dimension.back().ranks == 0) moves.push_back(&dimension.back());
  }
  if (auto change = combined(variants, moves)) return {std::move(*change)};
  for (const Dimension& dimension : all) {
    if (dimension.back().ranks == 0) continue;
    moves.push_back(nullptr);
    for (const Move& ranks : dimension) {
      moves.back() = &ranks;
      if (auto change = combined(variants, moves)) return {std::move(*change)};
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
  for (const WorldPlan::Group& group : world.groups()) all += group.num_ranks * of(group.plan);
  return all;
}

// The need without scratch says which sizes can't fit; of the others the largest that does.
std::optional<Extreme> largest_free_micro_batch(const Variants& variants) {
  Batch batch = variants.batch();
  const auto resolved = [&](std::int64_t micro, Settings& settings) {
    batch.micro = micro;
    return variants.resolved(settings, batch);
  };
  const auto may_fit = [&](std::int64_t micro) {
    Settings settings;
    const auto variant = resolved(micro, settings);
    if (!variant) return false;
    try {
      return least_need(plan_world(variant->values), variants.limit()) <= variants.limit().bytes;
    } catch (const UsageError&) {  // more bytes than can be counted
      return false;
    }
  };
  std::int64_t fits = 0, too_large = kMostSequences + 1;
  while (fits + 1 < too_large) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    (may_fit(middle) ? fits : too_large) = middle;
  }
  for (; fits > 0; --fits) {
    batch.micro = fits;
    if (auto change = variants.fitting({}, batch)) return Extreme{fits, std::move(*change)};
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

std::optional<Extreme> largest_micro_batch(const ResolvedRecipe& recipe, const DeviceLimit& limit) {
  const Variants variants(recipe, limit);
  if (!variants.is_written(kGlobalBatch)) return largest_free_micro_batch(variants);
  Batch batch = variants.batch();
  const std::int64_t sequences = batch.micro * batch.accumulation;
  const std::vector<std::int64_t> sizes = divisors(sequences);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    batch.micro = *size;
    batch.accumulation = sequences / *size;
    if (auto change = variants.fitting({}, batch)) return Extreme{*size, std::move(*change)};
  }
  return std::nullopt;
}

std::optional<Extreme> smallest_world(const ResolvedRecipe& recipe, const DeviceLimit& limit) {
  const Variants variants(recipe, limit);
  Batch batch = variants.batch();
  const std::int64_t sequences = batch.ranks * batch.accumulation;
  for (const std::int64_t ranks : divisors(sequences)) {
    batch.ranks = ranks;
    batch.accumulation = sequences / ranks;
    if (auto change = variants.fitting({}, batch)) return Extreme{ranks, std::move(*change)};
  }
  return std::nullopt;
}

std::vector<std::pair<int, ResolvedRecipe>> at_every_stage(const ResolvedRecipe& recipe) {
  const DeviceLimit no_limit;
  const Variants variants(recipe, no_limit);
  std::vector<std::pair<int, ResolvedRecipe>> stages;
  for (int stage = 0; stage <= 3; ++stage) {
    Settings settings = {{kStage, std::to_string(stage)}};
    if (auto variant = variants.resolved(settings, variants.batch())) {
      stages.emplace_back(stage, std::move(*variant));
    }
  }
  return stages;
}

}  // namespace sherd::engine
