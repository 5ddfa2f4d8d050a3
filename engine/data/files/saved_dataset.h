/// Folders that Hugging Face `datasets` has written with save_to_disk.
///
///   a Dataset      state.json, which lists the .arrow files in order; dataset_info.json
///   a DatasetDict  dataset_dict.json, which lists the splits; each is a folder with a Dataset
///
/// The .arrow files are the data. The .json files aren't.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sherd::data {

/// Whether the folder has state.json and dataset_info.json.
bool is_saved_dataset(const std::filesystem::path& folder);

/// The paths of its .arrow files, in the order of its rows.
/// Errors   DataError: state.json doesn't list such files, or one isn't there; it selects rows by a
///          separate file of indices (written by versions before 2.0).
std::vector<std::string> files_of_saved_dataset(const std::filesystem::path& folder);

/// Errors   DataError if it is a DatasetDict, which mixes training and test data: names the splits.
void refuse_dataset_dict(const std::filesystem::path& folder);

}  // namespace sherd::data
