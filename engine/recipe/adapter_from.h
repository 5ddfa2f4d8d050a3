/// `checkpoint: {init_from: ADAPTER}`: a run goes on training an adapter that PEFT, or an export of ours, has saved.
///
/// The adapter's own keys (rank, alpha, rslora, targets, modules_to_save) come from the folder; a recipe leaves them
/// out or says the same. The model that it is for is model.from, or what the folder names. Dropout and everything else
/// are the run's own.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Before model.from is looked at. False, and a problem, if the folder can't be trained further.
bool take_adapter_from(Resolution& recipe);
/// The adapter's rows of the vocabulary, where it has more than the model. After model.from.
void take_vocabulary_of_adapter(Resolution& recipe);
/// Compares targets and modules that a person wrote with the folder's. After check_adapter.
void check_adapter_from(Resolution& recipe);

/// Whether the run's first adapter is that of a folder.
bool begins_with_adapter(const Recipe& recipe);
/// Where the weights are that an adapter is for: checkpoint.init_from, or model.from where that names an adapter.
std::string base_of(const Recipe& recipe);

}  // namespace sherd::engine
