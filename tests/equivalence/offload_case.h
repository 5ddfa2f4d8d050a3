/// Trainings whose state is elsewhere between uses: on disk (offload_test.cpp) or in a device's host
/// (host_offload_test.cpp).
#pragma once

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

inline constexpr optim::OptimizerType kOffloadedTypes[] = {
    optim::OptimizerType::kAdamW, optim::OptimizerType::kAdam, optim::OptimizerType::kSgd,
    optim::OptimizerType::kLion};
inline constexpr DType kOffloadedComputeTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// A tiny training that clips.
inline engine::TrainingOptions offload_options(optim::OptimizerType type, DType compute) {
  engine::TrainingOptions options = tiny_training(tiny_model(true), 0.5f);
  options.model.dtype = compute;
  options.precision = {compute, compute, DType::kF32};
  if (compute == DType::kF16) options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  return options;
}

/// Blocks of 512 elements, so that a unit has several.
inline engine::TrainingOptions offloaded(engine::TrainingOptions options, bool optimizer,
                                         bool parameters, bool on_host) {
  options.optimizer.offload = {.moments = optimizer,
                               .master = optimizer && options.model.dtype != DType::kF32,
                               .parameters = parameters,
                               .on_host = on_host,
                               .buffer_bytes = 1};
  return options;
}

}  // namespace sherd::testing
