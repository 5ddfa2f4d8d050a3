/// Averages models of one architecture and writes the result as a Hugging Face folder
/// (`sherd merge`).
///
///   merged = (sum over i of w_i x_i) / (sum over i of w_i),      w_i >= 0
///
/// Inputs    checkpoints, of any stage, mesh and number of ranks, and Hugging Face folders
/// Rounding  r is the input with the largest weight, the first of them. In f64, in the order of the
///           inputs without r:
///
///             x_r + (w_0 (x_0 - x_r) + w_1 (x_1 - x_r) + ...) / (w_0 + w_1 + ...)
///
///           which is rounded once, to the type of the file. So equal inputs, or a single weight
///           above 0, give the bits of an export.
/// Output    the folder that an export of the first input writes: its config.json, tokenizer and
///           chat template, and its type unless another is asked for.
/// Memory    for each writer and input a reader (engine/inference/elements.h), and 3 MiB. The number
///           of writers decreases with the number of inputs.
/// Refused   tensors or keys of the model that differ, other tokenizers, adapters, values that aren't
///           finite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/inference/export.h"

namespace sherd::engine {

struct MergeRequest {
  std::vector<std::string> inputs;  ///< checkpoints or folders
  std::vector<double> weights;      ///< one for each input; empty: equal ones
  std::string to;
  std::optional<DType> dtype{};  ///< none: as ExportRequest
  std::int64_t shard_bytes = huggingface::kDefaultShardBytes;
  bool average = false;                    ///< the checkpoints' averages of the weights
  std::optional<std::int64_t> ranks = {};  ///< writers
};

struct MergeSummary {
  ExportSummary folder;
  std::vector<double> weights;  ///< of the inputs, divided by their sum
};

/// Errors   UsageError, naming the first tensor or key that differs, or a folder that exists;
///          DataError; Interrupted by Ctrl-C, which leaves no file.
MergeSummary merge_models(const MergeRequest& request);

}  // namespace sherd::engine
