/// Reads any elements of a trained model's parameters, without ranks and without holding a tensor
/// whole.
#pragma once

#include <functional>
#include <vector>

#include "engine/huggingface/strided_box.h"
#include "engine/huggingface/weight_map.h"
#include "engine/inference/trained_model.h"

namespace sherd::engine {

/// Makes readers of the elements of `parameters`, which the model has as a whole model: an adapter's
/// folder is read with its adapter merged. `num_readers` are made at most; each is one thread's.
/// Memory   for each reader of a folder: 4 MiB and, of the parameter that it reads, up to 64 MiB; of
///          a checkpoint: engine/huggingface/checkpoint_elements.h
/// Errors   DataError, when reading, for damaged data, and for a folder's value that isn't finite.
std::function<huggingface::ReadElements()> elements_of(
    const TrainedModel& trained, const std::vector<huggingface::NamedShape>& parameters,
    int num_readers);

}  // namespace sherd::engine
