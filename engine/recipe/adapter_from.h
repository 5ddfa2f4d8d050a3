/// `checkpoint: {init_from: ADAPTER}`: a run continues an adapter that PEFT or our export has
/// saved.
///
/// The adapter's own keys (rank, alpha, rslora, targets, modules_to_save) come from the folder. A
/// recipe omits them or sets the same values. The base model is model.from, or the one that the
/// folder names. Dropout and everything else come from the recipe.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Call before model.from is read. Reports a problem and returns false if the adapter can't be
/// trained further.
bool take_adapter_from(Resolution& recipe);
/// Sets the vocabulary size to the adapter's if it has more rows than the model. Call after
/// model.from.
void take_vocabulary_of_adapter(Resolution& recipe);
/// Compares the recipe's targets and modules with the folder's. Call after check_adapter.
void check_adapter_from(Resolution& recipe);

/// Whether the run's initial adapter comes from a folder.
bool begins_with_adapter(const Recipe& recipe);
/// Where the base model's weights are: checkpoint.init_from, or model.from if init_from is an
/// adapter.
std::string base_of(const Recipe& recipe);

}  // namespace sherd::engine
