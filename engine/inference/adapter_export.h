/// What a checkpoint of an adapter becomes for others: PEFT's two files, or the merged model.
///
///   adapter_config.json, adapter_model.safetensors     names and rows: engine/huggingface/adapter_map.h;
///           the tokenizer's files and generation_config.json too, as the model's own folder would have them
///   merged: W + s B A of each target, formed in f64 from f32 values and rounded once, to the type of
///           the file; everything else as the base or the checkpoint has it. Where the base was NF4, W is
///           what its codes say: the model that was trained and evaluated
///
/// Memory   the adapter and the modules trained beside it, whole, once; of the base a chunk at a time for each
///          rank, with NF4 a matrix.
#pragma once

#include "engine/huggingface/adapter_map.h"
#include "engine/huggingface/export.h"
#include "engine/inference/trained_model.h"

namespace sherd::engine {

/// A recipe's adapter in the words of engine/huggingface.
huggingface::AdapterWeights adapter_weights(const Recipe& recipe);

/// The same folder with PEFT's files instead of a model's.
/// Errors   UsageError for what PEFT can't store of this family.
huggingface::FolderToWrite adapter_folder(const TrainedModel& trained,
                                          const huggingface::FolderToWrite& model, DType dtype);

/// Makes for each rank a reader of the merged model's parameters, numbered as in `parameters`: such that
/// rounding what it reads to `dtype` is the only rounding. Errors: as load_base_model's.
std::function<huggingface::ReadElements()> merged_elements(
    const TrainedModel& trained, const std::vector<huggingface::NamedShape>& parameters,
    DType dtype);

}  // namespace sherd::engine
