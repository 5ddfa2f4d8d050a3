/// Files that training runs have written, which aren't training data.
///
///   a run's folder   recipe.yaml with metrics.jsonl or checkpoints/, or .lock with one of the
///                    three
///   its own files    recipe.yaml, metrics.jsonl, memory.json, time.json, trace.json, best,
///                    hooks.log, on_save.json, SAVE, reference.safetensors, collectives_rank_N.txt, and everything in
///                    checkpoints/, huggingface/ and tensorboard/
///   anywhere         a checkpoint's folder (step-N with manifest.json), TensorBoard's event files,
///                    state of a killed run (sherd-state-...), and the sweep.json next to runs
///
/// All other files in a run's folder are ordinary data.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sherd::data {

bool is_run_folder(const std::filesystem::path& folder);

/// Whether `name` in `folder` is a run's own file. `in_run_folder`: whether `folder` is a run's
/// folder.
bool is_run_file(const std::filesystem::path& folder, std::string_view name, bool in_run_folder);

/// Whether the file, or one of the folders in `path`, is a run's own.
bool is_run_file(const std::filesystem::path& path);

}  // namespace sherd::data
