#include "engine/run/mup_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/store/disk.h"
#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/model/transformer.h"
#include "engine/run/prepare.h"
#include "engine/train/sharded_model.h"
#include "engine/trainer/trainer.h"

namespace sherd::engine {
namespace {

// What every layer computes for the batch: x before the blocks, after each of them, and logits.
using Activations = std::vector<std::vector<float>>;

template <class T>
std::vector<float> as_floats(const Tensor& tensor) {
  const T* values = tensor.as<T>();
  std::vector<float> out;
  for (std::int64_t i = 0; i < tensor.numel; ++i) out.push_back(static_cast<float>(values[i]));
  return out;
}

std::vector<float> values_of(const Tensor& tensor) {
  if (tensor.dtype == DType::kBF16) return as_floats<BFloat16>(tensor);
  if (tensor.dtype == DType::kF16) return as_floats<Float16>(tensor);
  return as_floats<float>(tensor);
}

// Of the pass that was evaluated last.
Activations activations_of(Trainer& trainer) {
  ShardedModel& model = trainer.model();
  const model::ModelShape& shape = model.transformer().shape();
  Activations activations;
  model.rank().compute().synchronize();
  for (std::int64_t block = 0; block <= shape.num_layers; ++block) {
    activations.push_back(values_of(model.transformer().residual_TD(block)));
  }
  model.plan({model.head_unit()});
  const Tensor logits = model.logits(0, std::min(model.most_logits(), shape.seq_length));
  model.rank().compute().synchronize();
  activations.push_back(values_of(logits));
  return activations;
}

double mean_size(const std::vector<float>& x, const std::vector<float>* from = nullptr) {
  double sum = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += std::abs(static_cast<double>(x[i]) - (from ? static_cast<double>((*from)[i]) : 0.0));
  }
  return sum / static_cast<double>(x.size());
}

// The recipe at another width, on one rank.
ResolvedRecipe at_width(const MupCheckRequest& request, const Recipe& recipe, std::int64_t width) {
  constexpr std::string_view kKey = "model.mup_base_hidden_size";
  const Recipe::Model& m = recipe.model;
  const auto scaled = [&](std::int64_t value, const char* what) {
    if (value * width % m.hidden_size != 0) {
      throw UsageError(
          "{}: at width {} the model would have {} x {} / {} {}, which isn't whole. Choose a base "
          "that is a multiple of the heads' width.",
          kKey, width, value, width, m.hidden_size, what);
    }
    return value * width / m.hidden_size;
  };
  const std::int64_t ffn = std::max<std::int64_t>(1, m.ffn_hidden_size * width / m.hidden_size);
  RecipeRequest own = request.recipe;
  own.ranks = 1;
  own.is_kept = true;  // a recipe of several ranks has keys without effect on one
  const auto set = [&](std::string_view key, std::int64_t value) {
    own.sets.push_back(fmt::format("{}={}", key, value));
  };
  set("model.hidden_size", width);
  set("model.num_attention_heads", scaled(m.num_attention_heads, "heads"));
  set("model.num_kv_heads", scaled(m.num_kv_heads, "key and value heads"));
  set("model.head_width", m.head_width);
  set("model.ffn_hidden_size", ffn);
  if (recipe.moe.num_experts > 0) {
    set("moe.ffn_hidden_size",
        std::max<std::int64_t>(1, recipe.moe.ffn_hidden_size * width / m.hidden_size));
  }
  for (const char* axis : {"data_parallel_replicate", "pipeline_parallel", "tensor_parallel",
                           "context_parallel", "expert_parallel"}) {
    set(fmt::format("parallelism.{}_degree", axis), 1);
  }
  set("parallelism.batch_groups", 1);
  own.sets.push_back(
      fmt::format("model.logits_scale={}",
                  static_cast<double>(m.mup_base_hidden_size) / static_cast<double>(width)));
  set("training.micro_batch_size", recipe.training.micro_batch_size);
  set("training.global_batch_size", recipe.training.micro_batch_size);
  set("training.gradient_accumulation_steps", 1);
  own.sets.insert(own.sets.end(),
                  {"parallelism.sequence_parallel=false", "run.device=cpu",
                   "zero_optimization.stage=0", "data.stages=[]", "checkpoint.init_from="});
  return resolve_recipe(own);
}

// [steps done] the activations of one width.
std::vector<Activations> trained_at(const ResolvedRecipe& recipe, int num_steps) {
  PreparedRun run = prepare(recipe, *cpu_machine(), checkpoint::posix_disk());
  if (run.batches[0]->num_validation_windows() == 0) {
    throw UsageError("mup-check reads a validation batch; set data.validation_fraction.");
  }
  TrainerOptions options{.training = run.prepared[0].options, .batches = run.batches[0]};
  options.training.lr_schedule = {.type = optim::ScheduleType::kConstant,
                                  .lr = recipe.values.optimizer.lr};
  options.checkpoints.directory = recipe.values.run.output_dir + "/mup-check";  // never made
  options.checkpoints.resume = "never";
  LaunchOptions launch = launch_options(recipe.values, cpu_machine());
  launch.plan = [&](int rank) { return run.prepared[0].plan.of(rank); };
  std::vector<Activations> after;
  run_ranks(launch, [&](sharding::Rank& rank) {
    Trainer trainer(options, rank);
    rank.guard([&] {
      trainer.load();
      for (int step = 0; step <= num_steps; ++step) {
        if (step > 0) trainer.step();
        trainer.evaluate(1);
        after.push_back(activations_of(trainer));
      }
    });
  });
  return after;
}

// The slope of the line of least squares through (log2 width, log2 change).
double slope(const std::vector<std::int64_t>& widths, const std::vector<double>& changes) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = static_cast<double>(widths.size());
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const double a = std::log2(static_cast<double>(widths[i]));
    const double b = std::log2(std::max(changes[i], 1e-300));
    x += a, y += b, xx += a * a, xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

std::string name_of(std::size_t layer, std::size_t num_layers) {
  if (layer == 0) return "embedding";
  if (layer + 1 == num_layers) return "logits";
  return fmt::format("block {}", layer - 1);
}

}  // namespace

MupCheck mup_check(const MupCheckRequest& request) {
  const Recipe recipe = resolve_recipe(request.recipe).values;
  const std::int64_t base = recipe.model.mup_base_hidden_size;
  if (base == 0) {
    throw UsageError(
        "{}: model.mup_base_hidden_size isn't set, so there is no muP to check. Set it to the "
        "width "
        "that the learning rate was tuned on.",
        request.recipe.path);
  }
  MupCheck check;
  for (int i = 0; i < request.num_widths; ++i) {
    const std::int64_t width = base << i;
    check.widths.push_back(width);
    const auto after = trained_at(at_width(request, recipe, width), request.num_steps);
    check.layers.resize(after[0].size());
    for (std::size_t layer = 0; layer < check.layers.size(); ++layer) {
      LayerSizes& sizes = check.layers[layer];
      sizes.name = name_of(layer, check.layers.size());
      sizes.mean.emplace_back();
      sizes.change.emplace_back();
      for (const Activations& activations : after) {
        sizes.mean.back().push_back(mean_size(activations[layer]));
        sizes.change.back().push_back(mean_size(activations[layer], &after[0][layer]));
      }
    }
  }
  check.is_flat = true;
  for (LayerSizes& layer : check.layers) {
    std::vector<double> last;
    for (const std::vector<double>& changes : layer.change) last.push_back(changes.back());
    layer.exponent = slope(check.widths, last);
    check.is_flat = check.is_flat && layer.exponent <= MupCheck::kMostGrowth;
  }
  return check;
}

std::string mup_check_text(const MupCheck& check) {
  std::string text = fmt::format("{:<12}{:>6}", "mean |x|", "step");
  for (const std::int64_t width : check.widths) {
    text += fmt::format("{:>12}", fmt::format("width {}", width));
  }
  text += "\n";
  for (const LayerSizes& layer : check.layers) {
    for (std::size_t step = 0; step < layer.mean[0].size(); ++step) {
      text += fmt::format("{:<12}{:>6}", step == 0 ? layer.name : "", step);
      for (const std::vector<double>& of_width : layer.mean) {
        text += fmt::format("{:>12.4g}", of_width[step]);
      }
      text += "\n";
    }
    text += fmt::format("{:<12}{:>6}", "", "change");
    for (const std::vector<double>& of_width : layer.change) {
      text += fmt::format("{:>12.4g}", of_width.back());
    }
    text += fmt::format("   ~ width^{:.2f}\n", layer.exponent);
  }
  return text + fmt::format("{} grows faster than width^{}",
                            check.is_flat ? "flat: no change" : "not flat: a change",
                            MupCheck::kMostGrowth);
}

}  // namespace sherd::engine
