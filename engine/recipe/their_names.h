/// Patterns of optimizer.groups in the names of the Hugging Face folder that the model is from, or
/// that an export of it would write, such as "model.layers.*.mlp.down_proj.weight". They become
/// patterns for our names.
///
/// A matrix of ours may stack several of theirs, as query, key and value. A group must then name all
/// of them.
#pragma once

#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Leaves patterns that match a name of ours, or none of theirs. Call when the model is known.
/// Errors   reported: a group names only a part of a matrix
void take_their_names(Resolution& recipe);

}  // namespace sherd::engine
