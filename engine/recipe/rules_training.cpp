// Rules about steps, data, checkpoints, and texts that may not be empty.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/byte_size.h"
#include "core/error.h"
#include "engine/recipe/compression_rules.h"
#include "engine/recipe/mtp_rules.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/uses.h"

namespace sherd::engine {
namespace {

// Groups need whole micro-batches, with a reduction after each.
void check_batch_groups(Resolution& recipe) {
  constexpr std::string_view kGroups = "parallelism.batch_groups";
  constexpr std::string_view kReplicas = "parallelism.data_parallel_replicate_degree";
  const Recipe& values = recipe.values();
  const std::int64_t groups = values.parallelism.batch_groups;
  const std::int64_t replicas = values.parallelism.data_parallel_replicate_degree;
  if (groups == replicas) return;
  if (replicas > 1) {
    return recipe.refuse({kGroups, kReplicas},
                         "{} is {}, but each of {} replicas has one group. Use {}: {}, or leave it "
                         "out.",
                         kGroups, groups, replicas, kGroups, replicas);
  }
  if (values.zero_optimization.grad_sync == GradSync::kBoundary) {
    recipe.refuse(
        {kGroups, "zero_optimization.grad_sync"},
        "{} is {}, whose sums are formed in every micro-step, and grad_sync is boundary. Use "
        "grad_sync: every_micro_step, or leave it out.",
        kGroups, groups);
  }
  const std::int64_t parts = values.training.gradient_accumulation_steps * values.data_degree();
  if (parts > 0 && parts % groups != 0) {
    std::int64_t nearest = std::min(groups, parts);
    while (parts % nearest != 0) --nearest;
    recipe.refuse(
        {kGroups, "training.gradient_accumulation_steps"},
        "{} is {}, but a step has {} micro-batches, which this number of groups can't divide. "
        "{}: {} would work.",
        kGroups, groups, parts, kGroups, nearest);
  }
}

// Replicas can only divide state that is sharded already. Muon and Dion form whole matrices within
// a replica.
void check_optimizer_over_replicas(Resolution& recipe) {
  constexpr std::string_view kKey = "zero_optimization.shard_optimizer_over_replicas";
  const Recipe& values = recipe.values();
  if (!values.zero_optimization.shard_optimizer_over_replicas) return;
  if (values.zero_optimization.stage == 0) {
    recipe.refuse({kKey, "zero_optimization.stage"},
                  "{} is true, but at stage 0 every rank holds the whole optimizer's state. Use "
                  "stage: 1, 2 or 3, or leave it out.",
                  kKey);
  }
  const optim::OptimizerType type = values.optimizer.type;
  if (type == optim::OptimizerType::kMuon || type == optim::OptimizerType::kDion) {
    recipe.refuse({kKey, "optimizer.type"},
                  "{} is true, but {} forms whole matrices out of their slices in every step, "
                  "within a replica. Use another optimizer, or leave it out.",
                  kKey, type == optim::OptimizerType::kMuon ? "muon" : "dion");
  }
}

// The two rates are stored as one rate and a float ratio.
void check_rates_of_both_updates(Resolution& recipe) {
  const auto& optimizer = recipe.values().optimizer;
  if (!optim::descriptor_of(optimizer.type).leaves_some_to_adamw) return;
  if (optimizer.adamw_lr == 0.0) return;
  if (optimizer.lr == 0.0) {
    return recipe.refuse(
        {"optimizer.lr", "optimizer.adamw_lr"},
        "optimizer.lr is 0, and adamw_lr {} is kept as a multiple of it. Use a tiny lr, "
        "such as 1e-12, or adamw_lr: 0.",
        optimizer.adamw_lr);
  }
  const double ratio = optimizer.adamw_lr / optimizer.lr;
  if (ratio <= std::numeric_limits<float>::max() && ratio >= std::numeric_limits<float>::min()) {
    return;
  }
  recipe.refuse({"optimizer.lr", "optimizer.adamw_lr"},
                "optimizer.adamw_lr {} is {:.3g} times lr {}, and the ratio is kept as a 32-bit "
                "float. Bring them closer, or use 0 for adamw_lr.",
                optimizer.adamw_lr, ratio, optimizer.lr);
}

void check_evaluations(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.training.eval_at_start && !validates(values) && !recipe.request().is_kept) {
    recipe.refuse({"training.eval_at_start", "data.validation_fraction"},
                  "training.eval_at_start is true, but there is nothing to evaluate on. Set "
                  "data.validation_fraction, validation_path or validation_sets.");
  }
  const std::int64_t patience = values.training.early_stopping_patience;
  if (patience == 0) return;
  if (values.training.eval_interval == 0) {
    recipe.refuse({"training.early_stopping_patience", "training.eval_interval"},
                  "training.early_stopping_patience is {}, but training.eval_interval is 0: "
                  "nothing is evaluated before the end. Set eval_interval.",
                  patience);
  }
  if (!validates(values)) {
    recipe.refuse({"training.early_stopping_patience", "data.validation_fraction"},
                  "training.early_stopping_patience is {}, but data.validation_fraction is 0: "
                  "there is nothing to evaluate on. Set it, or data.validation_path.",
                  patience);
  }
}

// What only one rank holds has nothing to be compared with.
void check_weight_hashes(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const Recipe::Parallelism& degrees = values.parallelism;
  if (values.training.weight_hash_interval == 0) return;
  const bool has_tied_ends = values.model.tie_embeddings && degrees.pipeline_parallel_degree > 1;
  // Replicas that train apart hold other values.
  const std::int64_t replicas = degrees.data_parallel_replicate_degree;
  const std::int64_t alike = values.diloco.active() ? 1 : replicas;
  const std::int64_t of_units = values.num_workers() / replicas / degrees.pipeline_parallel_degree;
  const bool has_copies = values.zero_optimization.stage < 3
                              ? of_units * alike > 1 || has_tied_ends
                              : alike > 1 || has_tied_ends || degrees.tensor_parallel_degree > 1;
  if (has_copies) return;
  recipe.refuse(
      {"training.weight_hash_interval", "zero_optimization.stage"},
      "training.weight_hash_interval is {}, but with {} rank{} at stage {} each weight is "
      "held once, so nothing can be compared. Use 0.",
      values.training.weight_hash_interval, values.num_workers(),
      values.num_workers() == 1 ? "" : "s", values.zero_optimization.stage);
}

void check_checkpoints(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& checkpoint = values.checkpoint;
  const std::int64_t eval_interval = values.training.eval_interval;
  if (checkpoint.keep_best > 0 &&
      (eval_interval == 0 || checkpoint.interval % eval_interval != 0)) {
    recipe.refuse({"checkpoint.keep_best", "checkpoint.interval", "training.eval_interval"},
                  "checkpoint.keep_best needs a validation loss at each checkpoint, but "
                  "checkpoint.interval {} isn't a multiple of training.eval_interval {}.",
                  checkpoint.interval, eval_interval);
  } else if (checkpoint.keep_best > 0 && !validates(values) && !recipe.request().is_kept) {
    recipe.refuse({"checkpoint.keep_best", "data.validation_fraction"},
                  "checkpoint.keep_best is {}, but data.validation_fraction is 0: there is no "
                  "validation loss to compare. Set it, or data.validation_path.",
                  checkpoint.keep_best);
  }
  if (checkpoint.staging_mib > 0 && checkpoint.staging_mib < 4) {
    recipe.refuse(
        {"checkpoint.staging_mib"},
        "checkpoint.staging_mib is {}; a write takes 4 MiB, so use at least 4, or 0 for all that "
        "a rank saves.",
        checkpoint.staging_mib);
  }
}

void check_rewinds(Resolution& recipe) {
  constexpr std::string_view kKey = "bad_steps.rewind_after";
  const Recipe& values = recipe.values();
  const std::int64_t after = values.bad_steps.rewind_after;
  if (after == 0) return;
  if (after >= values.bad_steps.max_in_a_row) {
    recipe.refuse({kKey, "bad_steps.max_in_a_row"},
                  "{} is {}, but the run ends after bad_steps.max_in_a_row {} bad steps. Lower it.",
                  kKey, after, values.bad_steps.max_in_a_row);
  }
  if (values.checkpoint.interval == 0) {
    recipe.refuse({kKey, "checkpoint.interval"},
                  "{} is {}, but checkpoint.interval is 0: there is nothing to go back to. Set it.",
                  kKey, after);
  }
}

void check_added_tokens(Resolution& recipe) {
  constexpr std::string_view kKey = "model.add_special_tokens";
  const Recipe& values = recipe.values();
  const auto& tokens = values.model.add_special_tokens;
  if (tokens.empty()) return;
  if (values.data.tokenizer.empty()) {
    recipe.refuse({kKey, "data.tokenizer"},
                  "{} needs data.tokenizer, the tokenizer that they are added to.", kKey);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].empty() && std::find(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                        tokens.end(), tokens[i]) == tokens.end()) {
      continue;
    }
    return recipe.refuse({kKey}, "{} has {}.", kKey,
                         tokens[i].empty() ? "an empty token" : '"' + tokens[i] + "\" twice");
  }
}

void check_texts(Resolution& recipe) {
  const Recipe& values = recipe.values();
  struct Text {
    const char* key;
    const std::string& value;
    const char* expected;
  };
  const Text texts[] = {
      {"run.name", values.run.name, "a name"},
      {"run.output_dir", values.run.output_dir, "a name"},
      {"data.path", values.data.path, "a name"},
      {"checkpoint.resume", values.checkpoint.resume, "auto, never or a checkpoint's folder"}};
  for (const Text& text : texts) {
    if (text.key == std::string_view("data.path") &&
        (!recipe.request().reads_data || !values.data.sources.empty())) {
      continue;
    }
    if (!text.value.empty()) continue;
    recipe.refuse({text.key}, "{} is \"\"; expected {}.", text.key, text.expected);
  }
  for (const auto& [key, size] : {std::pair<std::string_view, const std::string&>(
                                      "memory.device_memory", values.memory.device_memory),
                                  {"memory.server_memory", values.memory.server_memory}}) {
    if (size.empty()) continue;
    try {
      parse_bytes(size);
    } catch (const UsageError& error) {
      recipe.refuse({key}, "{}: {}", key, error.what());
    }
  }
}

}  // namespace

void check_steps(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& schedule = values.lr_scheduler;
  const std::int64_t max_steps = values.training.max_steps;
  if (max_steps == 0) return;  // known with the data
  if (schedule.warmup_steps > max_steps) {
    recipe.refuse(
        {"lr_scheduler.warmup_steps", "training.max_steps"},
        "lr_scheduler.warmup_steps is {}, more than training.max_steps {}. Lower it to {} or "
        "less.",
        schedule.warmup_steps, max_steps, max_steps);
  } else if (schedule.type != optim::ScheduleType::kConstant &&
             schedule.type != optim::ScheduleType::kInverseSqrt &&
             schedule.warmup_steps > schedule.decay_steps) {
    recipe.refuse(
        {"lr_scheduler.warmup_steps", "lr_scheduler.decay_steps"},
        "lr_scheduler.warmup_steps is {}, more than decay_steps {}, at which the rate is lowest.",
        schedule.warmup_steps, schedule.decay_steps);
  }
  if (const auto& trace = values.metrics.trace_steps; trace && trace->last > max_steps) {
    recipe.refuse(
        {"metrics.trace_steps", "training.max_steps"},
        "metrics.trace_steps is [{}, {}], but with training.max_steps {} the last step is {}.",
        trace->first, trace->last, max_steps, max_steps);
  }
}

void check_training(Resolution& recipe) {
  check_batch_groups(recipe);
  check_optimizer_over_replicas(recipe);
  check_pipeline(recipe);
  check_tensor_ranks(recipe);
  check_context_ranks(recipe);
  check_steps(recipe);
  check_rates_of_both_updates(recipe);
  check_no_decay(recipe);
  check_groups(recipe);
  check_adafactor(recipe);
  check_qk_clip(recipe);
  check_router_bias(recipe);
  check_evaluations(recipe);
  check_weight_hashes(recipe);
  check_offload(recipe);
  check_preference(recipe);
  check_distillation(recipe);
  check_diloco(recipe);
  check_compression(recipe);
  check_mtp(recipe);
  check_servers(recipe);
  check_checkpoints(recipe);
  check_rewinds(recipe);
  check_data(recipe);
  check_added_tokens(recipe);
  check_texts(recipe);
}

}  // namespace sherd::engine
