/// Files that training runs have written, which are no data to train on.
///
///   a run's folder   recipe.yaml with metrics.jsonl or checkpoints/, or .lock with one of the three
///   its own files    recipe.yaml, metrics.jsonl, memory.json, trace.json, best, collectives_rank_N.txt,
///                    and what is in checkpoints/, huggingface/ and tensorboard/
///   anywhere         a checkpoint's folder (step-N with manifest.json) and TensorBoard's event files
///
/// Whatever else somebody puts into a run's folder is data like everything else.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sherd::data {

bool is_run_folder(const std::filesystem::path& folder);

/// `name` in a folder, of which is known whether it is a run's.
bool is_run_file(const std::filesystem::path& folder, std::string_view name, bool in_run_folder);

/// Whether one of the folders that `path` names on its way, or the file itself, is a run's own.
bool is_run_file(const std::filesystem::path& path);

}  // namespace sherd::data
