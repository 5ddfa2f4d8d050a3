/// Exports of an adapter's checkpoint: PEFT's two files, or the merged model.
///
///   adapter_config.json, adapter_model.safetensors
///           names and rows: engine/huggingface/adapter_map.h; also the tokenizer's files and
///           generation_config.json, as in an export of the model itself
///   merged: W + s B A of each target, formed in f64 from f32 values and rounded once, to the type
///           of the file; everything else as in the base or the checkpoint. If the base was NF4, W
///           is the dequantised matrix: the model that was trained and evaluated
///
/// Memory   one whole copy of the adapter and the modules trained with it; a chunk of the base at a
///          time for each rank, or with NF4 a matrix.
#pragma once

#include "engine/huggingface/adapter_map.h"
#include "engine/huggingface/export.h"
#include "engine/inference/trained_model.h"

namespace sherd::engine {

/// Converts a recipe's adapter to engine/huggingface's AdapterWeights.
huggingface::AdapterWeights adapter_weights(const Recipe& recipe);

/// The same folder with PEFT's files instead of a model's. `base_has_parts`: as in AdapterWeights.
/// Errors   UsageError for adapters of this family that PEFT can't store.
huggingface::FolderToWrite adapter_folder(const TrainedModel& trained,
                                          const huggingface::FolderToWrite& model, DType dtype,
                                          bool base_has_parts);

/// Returns, for each rank, a reader of the merged model's parameters, indexed as in `parameters`.
/// Rounding its values to `dtype` is the only rounding. Errors: as load_base_model.
std::function<huggingface::ReadElements()> merged_elements(
    const TrainedModel& trained, const std::vector<huggingface::NamedShape>& parameters,
    DType dtype);

}  // namespace sherd::engine
