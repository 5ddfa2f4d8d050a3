// A legal recipe's optimizer, types of numbers, evaluations and checkpoints.

#include <fmt/format.h>

#include <algorithm>

#include "tests/support/random/legal_recipe.h"

namespace sherd::testing {

// Small enough for three steps to stay finite.
void LegalRecipe::numbers() {
  max_steps_ = 3;
  set("training.max_steps", max_steps_);
  leave("training.num_epochs");  // it would be another number of steps
  maybe("model.dropout", random_.one_of({"0", "0.1", "0.5", "0.9"}));
  maybe("model.rope_theta", random_.one_of({"2", "100", "1e6"}));
  maybe("model.norm_eps", random_.one_of({"1e-12", "1e-5", "0.1"}));
  maybe("model.init_std", random_.one_of({"1e-6", "0.02", "0.5"}));
  maybe("optimizer.lr", random_.one_of({"1e-12", "1e-3", "0.01"}));
  maybe("optimizer.adamw_lr", random_.one_of({"0", "1e-3"}));
  maybe("optimizer.dion_rank_fraction", random_.one_of({"1e-3", "0.5", "1"}));
  maybe("optimizer.muon_coefficients", random_.one_of({"jordan", "polar_express"}));
  maybe("optimizer.muon_dtype", random_.one_of({"f32", "bf16"}));
  maybe("optimizer.eps", random_.one_of({"1e-12", "1e-8", "1"}));
  maybe("optimizer.weight_decay", random_.one_of({"0", "0.1", "1"}));
  maybe("optimizer.no_decay", has_adapter_
                                  ? random_.one_of({"[]", "[\"*\"]"})
                                  : random_.one_of({"[]", "[\"embedding.*\", \"*norm*\"]"}));
  maybe("optimizer.trust_coefficient", random_.one_of({"1e-3", "1"}));
  maybe("optimizer.beta2_decay", random_.one_of({"-0.8", "0", "-2"}));
  maybe("optimizer.clip_threshold", random_.one_of({"1e-3", "1"}));
  maybe("optimizer.min_parameter_rms", random_.one_of({"1e-6", "0.1"}));
  maybe("optimizer.betas", random_.one_of({"[0.9, 0.95]", "[0, 0]", "[0.5, 0.999]"}));
  maybe("optimizer.momentum", random_.one_of({"0", "0.9", "0.99"}));
  maybe("optimizer.groups",
        has_adapter_
            ? random_.one_of({"[]", "[{parameters: [\"*\"], lr_factor: 0.5}]"})
            : random_.one_of({"[]", "[{parameters: [\"*\"], lr_factor: 0.5, weight_decay: 0.01}]",
                              "[{parameters: [\"embedding.*\", \"block.0.*\"], frozen: true}]",
                              "[{parameters: [\"block.*norm*\"]}, {parameters: "
                              "[\"block.*\"], frozen: true}]"}));
  // New rows of an embedding that is frozen would never be trained.
  if (settings_.contains("model.add_special_tokens")) leave("optimizer.groups");
  // QK-clip scales queries and keys, which a group may freeze.
  if (settings_.contains("optimizer.qk_clip_threshold")) leave("optimizer.groups");
  maybe("model.mup_base_hidden_size", random_.one_of({"0", "8", "100"}));
  const auto optimizer = settings_.find("optimizer.type");
  const bool by_trust =
      optimizer != settings_.end() && (optimizer->second == "lamb" || optimizer->second == "lars" ||
                                       optimizer->second == "adafactor");
  if (by_trust || has_adapter_ || settings_.contains("model.logits_scale")) {
    leave("model.mup_base_hidden_size");
  }
  maybe("averages.decay", random_.one_of({"0", "0.5", "0.999"}));
  maybe("averages.start_step", random_.whole(0, max_steps_));
  maybe("averages.interval", random_.whole(1, 2));
  maybe("bad_steps.max_loss", random_.one_of({"0", "1e6"}));
  maybe("bad_steps.max_grad_norm", random_.one_of({"0", "1e6"}));
  maybe("bad_steps.sigma", random_.one_of({"0", "6"}));
  maybe("bad_steps.window", random_.whole(2, 8));
  leave("bad_steps.max_in_a_row");  // it may end the run
  for (const char* key : {"after", "steps"}) leave(fmt::format("bad_steps.rewind_{}", key));
  leave("bad_steps.skip_data_steps");
  leave("bad_steps.max_rewinds");
  leave("lr_scheduler.batch_size_scaling");
  maybe("gradient_clipping.max_norm", random_.one_of({"0", "1e-3", "1", "100"}));
  maybe("lr_scheduler.warmup_steps", random_.whole(0, max_steps_));
  maybe("lr_scheduler.decay_steps", random_.whole(max_steps_, max_steps_ + 3));
}

void LegalRecipe::precision() {
  const std::string compute = random_.one_of({"f32", "bf16", "f16"});
  const std::string reduce = random_.chance(0.5) ? "f32" : compute;
  set("mixed_precision.param_dtype", compute);
  set("mixed_precision.reduce_dtype", reduce);
  const std::string sync = random_.one_of({"boundary", "every_micro_step"});
  set("zero_optimization.grad_sync", sync);
  leave("parallelism.batch_groups");
  if (sync == "every_micro_step" &&
      whole(settings_, "parallelism.data_parallel_replicate_degree") == 1 && random_.chance(0.3)) {
    const std::int64_t micro_batches = whole(settings_, "training.global_batch_size") /
                                       whole(settings_, "training.micro_batch_size");
    std::int64_t groups = random_.whole(1, micro_batches);
    while (micro_batches % groups != 0) --groups;
    set("parallelism.batch_groups", groups);
  }
  leave("mixed_precision.grad_accum_dtype");
  std::string sums = reduce;
  if (sync == "every_micro_step" && random_.chance(0.5)) {
    sums = random_.one_of({"f32", "bf16", "f16"});
    set("mixed_precision.grad_accum_dtype", sums);
  }
  const std::string type = value_of("optimizer.type", "adamw");
  const std::string state =
      type == "adafactor" || type == "dion" ? "f32" : random_.one_of({"f32", "bf16"});
  set("mixed_precision.optimizer_state_dtype", state);
  if (state == "f32") leave("mixed_precision.stochastic_rounding");
  const bool f16 = compute == "f16" || reduce == "f16" || sums == "f16";
  maybe("loss_scaling.mode", f16 ? random_.one_of({"static", "dynamic"})
                                 : random_.one_of({"none", "static", "dynamic"}));
  maybe("loss_scaling.initial_scale_power", random_.whole(0, 12));
  maybe("loss_scaling.min_scale", random_.one_of({"1e-3", "1"}));
}

// Parts of small matrices on tensor or expert ranks aren't whole blocks of 64.
void LegalRecipe::eight_bits() {
  const auto is = [this](std::string_view key, std::initializer_list<std::string_view> values) {
    const auto found = settings_.find(std::string(key));
    return found == settings_.end() || std::ranges::find(values, found->second) != values.end();
  };
  if (!is("optimizer.type", {"adamw", "adam", "lion"}) ||
      !is("mixed_precision.optimizer_state_dtype", {"f32"}) ||
      !is("parallelism.tensor_parallel_degree", {"1"}) ||
      !is("parallelism.expert_parallel_degree", {"1"})) {
    leave("optimizer.eight_bit_states");
  }
}

void LegalRecipe::saves() {
  set("checkpoint.interval", random_.chance(0.8) ? random_.whole(1, 2) : 0);
  maybe("checkpoint.keep_last", random_.whole(1, 3));
  maybe("checkpoint.keep_every", random_.whole(0, 2));
  maybe("checkpoint.staging_mib", random_.one_of({"0", "4", "5"}));
  maybe("checkpoint.stop_deadline", random_.whole(30, 60));
  maybe("training.eval_interval", random_.whole(0, 2));
  maybe("training.eval_batches", random_.whole(0, 2));
  leave("checkpoint.keep_best");
  leave("training.best_by");
  leave("training.eval_at_start");
  leave("training.early_stopping_patience");  // it may end before the last step
  const auto fraction = settings_.find("data.validation_fraction");
  const bool validates = fraction == settings_.end() || fraction->second != "0";
  if (validates && random_.chance(0.3)) set("training.eval_at_start", "true");
  leave("training.tasks");
  if (validates && random_.chance(0.3)) {
    const std::string file = "questions." + settings_.at("data.format") + ".jsonl";
    set("training.tasks", "[{path: " + quoted(folder_.file(file)) + "}]");
  }
  if (validates && random_.chance(0.2)) {
    set("training.eval_interval", 1);
    set("checkpoint.keep_best", random_.whole(1, 2));
  }
  maybe("metrics.trace_steps", random_.one_of({"[]", "[1, 1]", "[2, 3]"}));
}

}  // namespace sherd::testing
