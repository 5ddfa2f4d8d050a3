// From assignments to a recipe: defaults, what follows from other values, and the rules that hold
// between keys. A rule that concerns one key alone is a range in the field table.
#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "engine/byte_size.h"
#include "engine/recipe.h"
#include "engine/recipe_fields.h"
#include "engine/recipe_source.h"
#include "engine/recipe_suggest.h"
#include "engine/recipe_values.h"

namespace sherd::engine {
namespace {

constexpr const char* kDataPath = "data.path";
constexpr std::string_view kShardDegree = "parallelism.data_parallel_shard_degree";
constexpr std::string_view kGlobalBatch = "training.global_batch_size";
constexpr std::string_view kMicroBatch = "training.micro_batch_size";
constexpr std::string_view kAccumulation = "training.gradient_accumulation_steps";

std::size_t row_of(std::string_view key) {
  const int row = field_index(key);
  CHECK(row >= 0, "no field \"{}\"", key);
  return static_cast<std::size_t>(row);
}

class Resolver {
 public:
  explicit Resolver(const RecipeRequest& request)
      : request_(request),
        is_set_(recipe_fields().size(), false),
        where_(recipe_fields().size(), request.path) {
    resolved_.origins.resize(recipe_fields().size());
  }

  ResolvedRecipe resolve() {
    read_assignments();
    fill_defaults();
    require_all();
    derive();
    check_model();
    check_sizes();
    check_training();
    check_precision();
    check_run();
    return std::move(resolved_);
  }

 private:
  void read_assignments() {
    const std::string text = request_.text ? *request_.text : read_recipe_file(request_.path);
    for (const Assignment& assignment : parse_recipe(request_.path, text)) assign(assignment);
    for (const std::string& set : request_.sets) assign(parse_set(set));
    if (!request_.ranks) return;
    const std::string where = fmt::format("--ranks {}", *request_.ranks);
    if (origin(kShardDegree).kind == Origin::Kind::kSet) {
      throw UsageError("{}: {} is also given with --set. Keep one.", where, kShardDegree);
    }
    Assignment assignment;
    assignment.key = kShardDegree;
    assignment.value = {.kind = RawValue::Kind::kPlain, .text = std::to_string(*request_.ranks)};
    assignment.origin = {Origin::Kind::kRanks, "--ranks"};
    assignment.where = where;
    assign(assignment);
  }

  void assign(const Assignment& assignment) {
    const std::size_t row = row_of(assignment.key);
    assign_value(recipe_fields()[row], assignment.value, assignment.where, resolved_.values);
    resolved_.origins[row] = assignment.origin;
    where_[row] = assignment.where;
    is_set_[row] = true;
  }

  // Parsed once: plans resolve a recipe with hundreds of settings.
  static const std::vector<RawValue>& default_values() {
    static const std::vector<RawValue> kValues = [] {
      std::vector<RawValue> values;
      for (const Field& field : recipe_fields()) {
        const bool has_value = field.fallback.kind == Fallback::Kind::kValue;
        values.push_back(has_value ? parse_value(std::string(field.fallback.text),
                                                 fmt::format("default of {}", field.key))
                                   : RawValue{});
      }
      return values;
    }();
    return kValues;
  }

  void fill_defaults() {
    for (std::size_t row = 0; row < recipe_fields().size(); ++row) {
      const Field& field = recipe_fields()[row];
      if (is_set_[row] || field.fallback.kind != Fallback::Kind::kValue) continue;
      assign_value(field, default_values()[row], fmt::format("default of {}", field.key),
                   resolved_.values);
    }
  }

  void require_all() const {
    std::vector<const Field*> missing;
    for (std::size_t row = 0; row < recipe_fields().size(); ++row) {
      const Field& field = recipe_fields()[row];
      if (!request_.reads_data && field.key == std::string_view(kDataPath)) continue;
      if (!is_set_[row] && field.fallback.kind == Fallback::Kind::kRequired)
        missing.push_back(&field);
    }
    if (missing.empty()) return;
    if (missing.size() == 1) {
      const Field& field = *missing[0];
      std::string help(field.help);
      help[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(help[0])));
      throw UsageError("{}: {} is missing: {} Write it below \"{}:\" or pass --set {}=VALUE.",
                       request_.path, field.key, help, field.block(), field.key);
    }
    std::vector<std::string_view> keys;
    for (const Field* field : missing) keys.push_back(field->key);
    throw UsageError("{}: {} are missing. Write them in the recipe or pass --set KEY=VALUE.",
                     request_.path, joined(keys, ", ", " and "));
  }

  /// Gives `key` the value of a rule, unless it was set.
  template <class T>
  void derive_one(std::string_view key, T& member, T value) {
    const std::size_t row = row_of(key);
    if (is_set_[row]) return;
    member = std::move(value);
    resolved_.origins[row] = {Origin::Kind::kDerived, "derived"};
  }

  void derive() {
    Recipe& recipe = resolved_.values;
    derive_one("run.name", recipe.run.name, std::filesystem::path(request_.path).stem().string());
    derive_one("run.output_dir", recipe.run.output_dir, "runs/" + recipe.run.name);

    auto& model = recipe.model;
    derive_one("model.num_kv_heads", model.num_kv_heads, model.num_attention_heads);
    // Llama's rule: two thirds of 4 * width, so that three matrices cost as much as GELU's two.
    const std::int64_t gated = (8 * model.hidden_size / 3 + 63) / 64 * 64;
    derive_one("model.ffn_hidden_size", model.ffn_hidden_size,
               model.activation == ActivationChoice::kGelu ? 4 * model.hidden_size : gated);
    derive_one("model.max_seq_length", model.max_seq_length, recipe.training.seq_length);

    derive_one("data.validation_fraction", recipe.data.validation_fraction,
               recipe.data.validation_path.empty() ? 0.1 : 0.0);
    derive_one("lr_scheduler.decay_steps", recipe.lr_scheduler.decay_steps,
               recipe.training.max_steps);
    auto& zero = recipe.zero_optimization;
    derive_one("zero_optimization.grad_sync", zero.grad_sync,
               zero.stage >= 2 ? GradSync::kEveryMicroStep : GradSync::kBoundary);
    if (recipe.parallelism.data_parallel_replicate_degree != 1) {
      fail({"parallelism.data_parallel_replicate_degree"},
           "parallelism.data_parallel_replicate_degree is {}; hybrid sharding isn't built yet, so "
           "only 1 works.",
           recipe.parallelism.data_parallel_replicate_degree);
    }
    derive_precision();
    derive_optimizer();
    derive_batch();
  }

  void derive_optimizer() {
    auto& optimizer = resolved_.values.optimizer;
    const OptimizerType type = optimizer.type;
    derive_one("optimizer.betas", optimizer.betas,
               {0.9, type == OptimizerType::kLion ? 0.99 : 0.95});
    derive_one("optimizer.eps", optimizer.eps, type == OptimizerType::kLamb ? 1e-6 : 1e-8);
    derive_one("optimizer.momentum", optimizer.momentum, type == OptimizerType::kMuon ? 0.95 : 0.9);
  }

  void derive_precision() {
    Recipe& recipe = resolved_.values;
    auto& precision = recipe.mixed_precision;
    derive_one("mixed_precision.grad_accum_dtype", precision.grad_accum_dtype,
               precision.reduce_dtype);
    derive_one("loss_scaling.mode", recipe.loss_scaling.mode,
               first_f16_key().empty() ? LossScaling::Mode::kNone : LossScaling::Mode::kDynamic);
  }

  /// The first of what gradients pass through that is f16, or "".
  std::string_view first_f16_key() const {
    const auto& precision = resolved_.values.mixed_precision;
    if (precision.param_dtype == FloatType::kF16) return "mixed_precision.param_dtype";
    if (precision.reduce_dtype == FloatType::kF16) return "mixed_precision.reduce_dtype";
    if (precision.grad_accum_dtype == FloatType::kF16) return "mixed_precision.grad_accum_dtype";
    return {};
  }

  /// global = micro * accumulation * ranks: two give the third.
  void derive_batch() {
    auto& training = resolved_.values.training;
    const std::int64_t ranks = resolved_.values.world_size();
    const bool has_global = is_set(kGlobalBatch), has_micro = is_set(kMicroBatch);
    if (!has_global && !has_micro) {
      fail({kAccumulation},
           "the batch size is missing. Give training.global_batch_size (sequences per step), "
           "training.micro_batch_size (sequences per rank at a time) or both.");
    }
    if (!(has_global && has_micro)) {
      derive_one(kAccumulation, training.gradient_accumulation_steps, std::int64_t{1});
    }
    if (has_global && has_micro && !is_set(kAccumulation)) {
      training.gradient_accumulation_steps =
          batch_quotient("micro_batch_size", kMicroBatch, training.micro_batch_size);
      resolved_.origins[row_of(kAccumulation)] = {Origin::Kind::kDerived, "derived"};
    } else if (has_global && !has_micro) {
      const std::int64_t micro = batch_quotient("gradient_accumulation_steps", kAccumulation,
                                                training.gradient_accumulation_steps);
      derive_one(kMicroBatch, training.micro_batch_size, micro);
    }
    const std::int64_t product =
        training.micro_batch_size * training.gradient_accumulation_steps * ranks;
    derive_one(kGlobalBatch, training.global_batch_size, product);
    if (training.global_batch_size != product) {
      fail(
          {kGlobalBatch, kMicroBatch, kAccumulation, kShardDegree},
          "training.global_batch_size is {}, but micro_batch_size {} x gradient_accumulation_steps "
          "{} x {} ranks = {}. Leave one of the three out, or write global_batch_size: {}.",
          training.global_batch_size, training.micro_batch_size,
          training.gradient_accumulation_steps, ranks, product, product);
    }
  }

  /// global_batch_size / (factor * ranks), which must be whole.
  std::int64_t batch_quotient(std::string_view name, std::string_view key, std::int64_t factor) {
    const std::int64_t global = resolved_.values.training.global_batch_size;
    const std::int64_t ranks = resolved_.values.world_size();
    const std::int64_t divisor = factor * ranks;
    if (global % divisor != 0) {
      const std::int64_t below = global / divisor * divisor;
      fail({kGlobalBatch, key, kShardDegree},
           "training.global_batch_size is {}, which isn't a multiple of {} {} x {} ranks = {}. "
           "global_batch_size: {} would be.",
           global, name, factor, ranks, divisor, below == 0 ? divisor : below);
    }
    return global / divisor;
  }

  void check_model() {
    const auto& model = resolved_.values.model;
    const auto& training = resolved_.values.training;
    if (model.hidden_size % model.num_attention_heads != 0) {
      fail({"model.hidden_size", "model.num_attention_heads"},
           "model.hidden_size is {}, which {} heads don't divide. Nearest multiples are {} and {}.",
           model.hidden_size, model.num_attention_heads,
           model.hidden_size / model.num_attention_heads * model.num_attention_heads,
           (model.hidden_size / model.num_attention_heads + 1) * model.num_attention_heads);
    }
    if (model.num_attention_heads % model.num_kv_heads != 0) {
      fail({"model.num_kv_heads", "model.num_attention_heads"},
           "model.num_kv_heads is {}, which doesn't divide num_attention_heads {}.",
           model.num_kv_heads, model.num_attention_heads);
    }
    const std::int64_t head_width = model.hidden_size / model.num_attention_heads;
    if (model.positions == PositionChoice::kRope && head_width % 2 != 0) {
      fail({"model.hidden_size", "model.num_attention_heads", "model.positions"},
           "a head is {} wide (hidden_size {} / num_attention_heads {}), but positions: rope turns "
           "pairs. Make it even, or use positions: learned.",
           head_width, model.hidden_size, model.num_attention_heads);
    }
    if (training.seq_length > model.max_seq_length) {
      fail({"training.seq_length", "model.max_seq_length"},
           "training.seq_length is {}, longer than model.max_seq_length {}. Raise the latter or "
           "leave it out.",
           training.seq_length, model.max_seq_length);
    }
  }

  // So that no product of a few sizes overflows later: what a rank holds stays far below 2^63
  // bytes.
  void check_sizes() {
    const auto& model = resolved_.values.model;
    const auto& training = resolved_.values.training;
    const double tokens =
        static_cast<double>(training.micro_batch_size) * static_cast<double>(training.seq_length);
    const double widths = static_cast<double>(8 * model.hidden_size + 4 * model.ffn_hidden_size) +
                          static_cast<double>(model.num_attention_heads);
    constexpr double kMostElementBytes = 16.0;
    if (tokens * widths * static_cast<double>(model.num_layers + 8) * kMostElementBytes >= 0x1p62) {
      fail({"training.seq_length", kMicroBatch},
           "micro-steps of {} sequences of {} tokens need more bytes than 64 bits can count in {} "
           "layers of width {}. Make them smaller.",
           training.micro_batch_size, training.seq_length, model.num_layers, model.hidden_size);
    }
  }

  void check_training() {
    const Recipe& recipe = resolved_.values;
    const auto& schedule = recipe.lr_scheduler;
    const std::int64_t max_steps = recipe.training.max_steps;
    if (schedule.warmup_steps > max_steps) {
      fail({"lr_scheduler.warmup_steps", "training.max_steps"},
           "lr_scheduler.warmup_steps is {}, more than training.max_steps {}. Lower it to {} or "
           "less.",
           schedule.warmup_steps, max_steps, max_steps);
    }
    if (schedule.type != optim::ScheduleType::kConstant &&
        schedule.warmup_steps > schedule.decay_steps) {
      fail(
          {"lr_scheduler.warmup_steps", "lr_scheduler.decay_steps"},
          "lr_scheduler.warmup_steps is {}, more than decay_steps {}, at which the rate is lowest.",
          schedule.warmup_steps, schedule.decay_steps);
    }
    const auto& optimizer = recipe.optimizer;
    if (optimizer.type == OptimizerType::kMuon && optimizer.lr == 0 && optimizer.adamw_lr > 0) {
      fail({"optimizer.lr", "optimizer.adamw_lr"},
           "optimizer.lr is 0, and muon's adamw_lr {} is kept as a multiple of it. Use a tiny lr, "
           "such as 1e-12, or adamw_lr: 0.",
           optimizer.adamw_lr);
    }
    if (const auto& trace = recipe.metrics.trace_steps; trace && trace->last >= max_steps) {
      fail({"metrics.trace_steps", "training.max_steps"},
           "metrics.trace_steps is [{}, {}], but with training.max_steps {} the last step is {}.",
           trace->first, trace->last, max_steps, max_steps - 1);
    }
    const auto& checkpoint = recipe.checkpoint;
    const std::int64_t eval_interval = recipe.training.eval_interval;
    if (checkpoint.keep_best > 0 &&
        (eval_interval == 0 || checkpoint.interval % eval_interval != 0)) {
      fail({"checkpoint.keep_best", "checkpoint.interval", "training.eval_interval"},
           "checkpoint.keep_best needs a validation loss at each checkpoint, but "
           "checkpoint.interval {} isn't a multiple of training.eval_interval {}.",
           checkpoint.interval, eval_interval);
    }
    if (checkpoint.staging_mib > 0 && checkpoint.staging_mib < 4) {
      fail(
          {"checkpoint.staging_mib"},
          "checkpoint.staging_mib is {}; a write takes 4 MiB, so use at least 4, or 0 for all that "
          "a rank saves.",
          checkpoint.staging_mib);
    }
    if (!recipe.data.validation_path.empty() && recipe.data.validation_fraction > 0) {
      fail({"data.validation_fraction", "data.validation_path"},
           "data.validation_fraction is {}, but data.validation_path is set too. Keep one.",
           recipe.data.validation_fraction);
    }
  }

  void check_precision() {
    const Recipe& recipe = resolved_.values;
    const auto& precision = recipe.mixed_precision;
    if (const std::string_view f16_key = first_f16_key();
        !f16_key.empty() && recipe.loss_scaling.mode == LossScaling::Mode::kNone) {
      fail({"loss_scaling.mode", f16_key},
           "{} is f16 and loss_scaling.mode is none: gradients below 6e-8 would vanish. Use "
           "loss_scaling.mode: dynamic, or bf16, which needs none.",
           f16_key);
    }
    if (precision.param_dtype == FloatType::kF32 && precision.reduce_dtype != FloatType::kF32) {
      fail({"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
           "mixed_precision.reduce_dtype is narrower than param_dtype f32, which would throw away "
           "what was computed. Use reduce_dtype: f32, or a 16-bit param_dtype too.");
    }
    if (precision.reduce_dtype != FloatType::kF32 && precision.param_dtype != FloatType::kF32 &&
        precision.reduce_dtype != precision.param_dtype) {
      fail({"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
           "mixed_precision.reduce_dtype and param_dtype are two different 16-bit types, of which "
           "neither holds the other. Use reduce_dtype: f32, or param_dtype's own.");
    }
    if (precision.grad_accum_dtype != precision.reduce_dtype &&
        recipe.zero_optimization.grad_sync == GradSync::kBoundary) {
      fail({"mixed_precision.grad_accum_dtype", "mixed_precision.reduce_dtype",
            "zero_optimization.grad_sync"},
           "mixed_precision.grad_accum_dtype differs from reduce_dtype, but with grad_sync: "
           "boundary it is the accumulated gradient that is reduced. Make them equal, or use "
           "grad_sync: every_micro_step.");
    }
    if (precision.optimizer_state_dtype == FloatType::kF16) {
      fail({"mixed_precision.optimizer_state_dtype"},
           "mixed_precision.optimizer_state_dtype is f16, in which squares of small gradients are "
           "0. Use f32, or bf16, which has the same range.");
    }
    if (precision.stochastic_rounding && precision.optimizer_state_dtype != FloatType::kBF16) {
      fail({"mixed_precision.stochastic_rounding", "mixed_precision.optimizer_state_dtype"},
           "mixed_precision.stochastic_rounding is for optimizer_state_dtype: bf16. Set that, or "
           "leave this out.");
    }
    const double initial_scale =
        std::ldexp(1.0, static_cast<int>(recipe.loss_scaling.initial_scale_power));
    if (recipe.loss_scaling.mode != LossScaling::Mode::kNone &&
        recipe.loss_scaling.min_scale > initial_scale) {
      fail({"loss_scaling.min_scale", "loss_scaling.initial_scale_power"},
           "loss_scaling.min_scale is {}, more than the first scale, 2^{} = {}. Lower it to {} or "
           "less.",
           recipe.loss_scaling.min_scale, recipe.loss_scaling.initial_scale_power, initial_scale,
           initial_scale);
    }
  }

  void check_run() {
    const Recipe& recipe = resolved_.values;
    for (const auto& [key, text] : {std::pair("run.name", &recipe.run.name),
                                    std::pair("run.output_dir", &recipe.run.output_dir),
                                    std::pair(kDataPath, &recipe.data.path)}) {
      if (!request_.reads_data && key == kDataPath) continue;
      if (text->empty()) fail({key}, "{} is \"\"; expected a name.", key);
    }
    if (!recipe.memory.device_memory.empty()) {
      try {
        parse_bytes(recipe.memory.device_memory);
      } catch (const UsageError& error) {
        fail({"memory.device_memory"}, "memory.device_memory: {}", error.what());
      }
    }
  }

  bool is_set(std::string_view key) const { return is_set_[row_of(key)]; }
  const Origin& origin(std::string_view key) const { return resolved_.origins[row_of(key)]; }

  /// Blames the first of `keys` that a person wrote, the command line before the file.
  template <class... Args>
  [[noreturn]] void fail(std::initializer_list<std::string_view> keys,
                         fmt::format_string<Args...> format, Args&&... args) const {
    std::string where = request_.path;
    for (const bool on_command_line : {false, true}) {
      for (auto key = std::rbegin(keys); key != std::rend(keys); ++key) {
        if (!is_set(*key)) continue;
        if ((origin(*key).kind == Origin::Kind::kFile) != on_command_line)
          where = where_[row_of(*key)];
      }
    }
    throw UsageError("{}: {}", where, fmt::format(format, std::forward<Args>(args)...));
  }

  const RecipeRequest& request_;
  ResolvedRecipe resolved_;
  std::vector<bool> is_set_;
  std::vector<std::string> where_;  ///< of each row, for errors
};

}  // namespace

const Origin& ResolvedRecipe::origin(std::string_view key) const {
  return origins.at(row_of(key));
}

ResolvedRecipe resolve_recipe(const RecipeRequest& request) {
  return Resolver(request).resolve();
}

}  // namespace sherd::engine
