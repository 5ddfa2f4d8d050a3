/// A sharded model's values as whole tensors by name: put in, and read out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/train/sharded_model.h"

namespace sherd::testing {

using ValuesByName = std::map<std::string, std::vector<float>>;

/// Gives every parameter of `model` the values in `values`. A collective: all ranks set the same.
void set_parameters(engine::ShardedModel& model, const ValuesByName& values);

/// Copies the reduced gradients of this rank's own slices into whole tensors (every rank writes its
/// own elements). They stand until the next step.
void collect_gradients(const engine::ShardedModel& model, ValuesByName& gradients);

/// `rank.rank`'s micro-batch of [first_row, first_row + sequences) and what it costs: the gradients
/// of one pass without an update, and the loss alone. Both with dropout, as at step `pass.step`.
void compute_gradients(engine::ShardedModel& model, const model::Pass& pass);
double compute_loss_sum(engine::ShardedModel& model, const model::Pass& pass);

}  // namespace sherd::testing
