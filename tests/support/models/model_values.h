/// Sets and reads a sharded model's values as whole tensors by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/train/sharded_model.h"

namespace sherd::testing {

using ValuesByName = std::map<std::string, std::vector<float>>;

/// Sets every parameter of `model` to its values in `values`. A collective: all ranks pass the
/// same.
void set_parameters(engine::ShardedModel& model, const ValuesByName& values);

/// Copies the reduced gradients of this rank's own slices into whole tensors (every rank writes its
/// own elements). The gradients are valid until the next step.
void collect_gradients(const engine::ShardedModel& model, ValuesByName& gradients);

/// For this rank's micro-batch of rows [first_row, first_row + sequences): computes the gradients
/// of one pass without an update, or only the loss. Both use dropout as at step `pass.step`.
void compute_gradients(engine::ShardedModel& model, const model::Pass& pass);
double compute_loss_sum(engine::ShardedModel& model, const model::Pass& pass);

}  // namespace sherd::testing
