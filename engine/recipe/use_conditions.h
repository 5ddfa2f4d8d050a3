/// Conditions of the table in uses.cpp that several keys share: tests of a recipe, named so that they
/// read as "used where ... holds".
#pragma once

#include <algorithm>

#include "engine/recipe/recipe.h"

namespace sherd::engine::use_conditions {

using R = const Recipe&;

/// Whether any layer satisfies `test`.
template <class Test>
inline bool any_layer(R r, const Test& test) {
  const auto layers = static_cast<std::size_t>(r.model.num_layers);
  const auto& [turned, windowed] = std::pair(r.model.rope_layers, r.model.window_layers);
  if (turned.empty() || windowed.empty()) return true;  // which a rule refuses
  for (std::size_t i = 0; i < layers && i < turned.size() * windowed.size(); ++i) {
    const bool in_window = r.model.window > 0 && windowed[i % windowed.size()] == '1';
    const bool is_turned =
        r.model.positions == PositionChoice::kRope && turned[i % turned.size()] == '1';
    if (test(is_turned, in_window)) return true;
  }
  return false;
}

inline bool turns(R r) {
  return any_layer(r, [](bool turned, bool) { return turned; });
}
inline bool turns_with_theta(R r) {
  return any_layer(r, [&](bool turned, bool in_window) {
    return turned && (!in_window || r.model.window_rope_theta == 0.0);
  });
}
inline bool turns_scaled(R r) {
  return r.model.rope_scaling != RotaryScaling::kNone &&
         any_layer(r, [&](bool turned, bool in_window) {
           return turned && (!in_window || r.model.window_rope_scaling);
         });
}
// Linear and llama3 only divide by the factor.
inline bool stretches(R r) {
  const bool divides = r.model.rope_scaling == RotaryScaling::kLinear ||
                       r.model.rope_scaling == RotaryScaling::kLlama3;
  return turns_scaled(r) && (!divides || r.model.rope_factor > 1.0);
}
inline bool turns_in_windows(R r) {
  return any_layer(r, [](bool turned, bool in_window) { return turned && in_window; });
}
template <RotaryScaling scaling>
inline bool scales_by(R r) {
  return r.model.rope_scaling == scaling && stretches(r);
}

inline bool on_gpus(R r) {
  return r.run.device != DeviceChoice::kCpu;
}
inline bool has_latents(R r) {
  return r.model.kv_lora_rank > 0;
}
inline bool has_experts(R r) {
  return r.moe.num_experts > 0;
}
inline bool adapts(R r) {
  return r.adapter.type == AdapterChoice::kLora;
}
inline bool is_chat(R r) {
  const auto is_own = [](const auto& item) { return item.format == "chat"; };
  return r.data.format == DataFormat::kChat || std::ranges::any_of(r.data.sources, is_own) ||
         std::ranges::any_of(r.data.validation_sets, is_own);
}
/// Whether `test(format, documents)` holds for any of the run's data. A text is empty where the
/// block's key counts.
template <class Test>
bool any_data(R r, const Test& test) {
  const auto passes = [&](const auto& item) { return test(item.format, item.documents); };
  return (r.data.sources.empty() && test(std::string(), std::string())) ||
         std::ranges::any_of(r.data.sources, passes) ||
         std::ranges::any_of(r.data.validation_sets, passes);
}
inline bool any_not_chat(R r) {
  return any_data(r, [&](const std::string& format, const std::string&) {
    return format.empty() ? r.data.format != DataFormat::kChat : format != "chat";
  });
}
inline bool any_bin(R r) {
  return any_data(r, [&](const std::string& format, const std::string&) {
    return format.empty() ? r.data.format == DataFormat::kBin : format == "bin";
  });
}
inline bool any_separate(R r) {
  return any_data(r, [&](const std::string& format, const std::string& documents) {
    return format == "chat" || (documents.empty() ? r.data.documents == DocumentChoice::kSeparate
                                                  : documents == "separate");
  });
}
inline bool samples(R r) {
  return r.training.sample_tokens > 0;
}
inline bool has_pipeline(R r) {
  return r.parallelism.pipeline_parallel_degree > 1;
}
inline bool at_stage_3(R r) {
  return r.zero_optimization.stage == 3;
}
inline bool offloads(R r) {
  return r.zero_optimization.offload_optimizer != OffloadDevice::kNone ||
         r.zero_optimization.offload_param != OffloadDevice::kNone;
}
inline bool has_files(R r) {
  return offloads(r) || r.activation_checkpointing.offload != OffloadDevice::kNone;
}
inline bool is_dynamic(R r) {
  return r.loss_scaling.mode == LossScaling::Mode::kDynamic;
}
inline bool decays(R r) {
  return r.lr_scheduler.type != optim::ScheduleType::kConstant;
}
inline bool decays_by_a_step(R r) {
  return decays(r) && r.lr_scheduler.type != optim::ScheduleType::kInverseSqrt;
}
// Whether a block of the recipe is in use.
template <auto block>
inline bool active(R r) {
  return (r.*block).active();
}
inline bool judges_answers(R r) {
  return r.preference.loss == PreferenceLoss::kKto;
}
inline bool averages(R r) {
  return r.averages.type != AverageType::kNone;
}
inline bool is_wsd(R r) {
  return r.lr_scheduler.type == optim::ScheduleType::kWsd;
}
inline bool judges_steps(R r) {
  return r.bad_steps.max_loss > 0.0 || r.bad_steps.max_grad_norm > 0.0 || r.bad_steps.sigma > 0.0 ||
         r.bad_steps.skip_non_finite;
}
inline bool rewinds(R r) {
  return r.bad_steps.rewind_after > 0;
}
inline bool changes_batch_size(R r) {
  return std::ranges::any_of(r.data.stages,
                             [](const DataStage& stage) { return stage.global_batch_size > 0; });
}
inline bool saves(R r) {
  return r.checkpoint.saves();
}
inline bool has_servers(R r) {
  return r.parallelism.parameter_servers > 0;
}
template <OptimizerType... types>
inline bool updates_by(R r) {
  return ((r.optimizer.type == types) || ...);
}

}  // namespace sherd::engine::use_conditions
