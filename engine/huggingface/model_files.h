/// The files of a model's folder that aren't weights: config.json, tokenizer, generation settings.
///
/// A run keeps them in its own folder, so that it can be resumed, sampled from and exported even if
/// the original folder no longer exists:
///
///   <output_dir>/huggingface/    the files, byte for byte, and
///                from.json       {"from": "FOLDER", "tokenizer": "FOLDER"}: as in model.from and
///                                data.tokenizer. If the second folder differs or is the only one,
///                                the tokenizer's files (with the chat template) come from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::huggingface {

/// The names of such files that are in `folder`, "additional_chat_templates/NAME.jinja" among them.
std::vector<std::string> model_files(checkpoint::Disk& disk, const std::string& folder);
/// Writes a file by such a name, which `folder` doesn't have.
void write_model_file(checkpoint::Disk& disk, const std::string& folder, const std::string& name,
                      std::string_view text);
bool is_tokenizer_file(const std::string& name);

std::string kept_folder(const std::string& output_dir);
/// Names that `keep_files` may leave in a run's folder, also if it is interrupted.
std::vector<std::string> kept_names();
/// Whether `output_dir` keeps the files of the folder `from`.
bool keeps(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from);
/// Whether the folder `kept` has the tokenizer's files of the folder `tokenizer`.
bool keeps_tokenizer(checkpoint::Disk& disk, const std::string& kept, const std::string& tokenizer);

/// Whether two folders have the same tokenizer.json, or one of them has none.
bool have_same_tokenizer(checkpoint::Disk& disk, const std::string& a, const std::string& b);

/// The folders that a run's files come from. Either may be empty.
struct KeptFolders {
  std::string from;
  std::string tokenizer;
};
/// Copies the files durably, and removes files kept from other folders. If the kept files already
/// come from these folders, they stay untouched.
void keep_files(checkpoint::Disk& disk, const std::string& output_dir, const KeptFolders& folders);

}  // namespace sherd::huggingface
