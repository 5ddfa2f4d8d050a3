/// The files of a model's folder that aren't weights: config.json, tokenizer, generation settings.
///
/// A run keeps them in its own folder, so that it can go on, be sampled from and exported when the
/// folder that it came from is gone:
///
///   <output_dir>/huggingface/    the files, byte for byte, and
///                from.json       {"from": "FOLDER", "tokenizer": "FOLDER"}: as model.from and data.tokenizer name
///                                them. The tokenizer's files, chat template included, are those of the second
///                                where it is another folder, or the only one.
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
/// What `keep_files` may leave in a run's folder, if it is cut off, too.
std::vector<std::string> kept_names();
/// Whether `output_dir` keeps the files of the folder `from`.
bool keeps(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from);
/// Whether the folder `kept` has the tokenizer's files of the folder `tokenizer`.
bool keeps_tokenizer(checkpoint::Disk& disk, const std::string& kept, const std::string& tokenizer);

/// Whether two folders have the same tokenizer.json, or one of them has none.
bool have_same_tokenizer(checkpoint::Disk& disk, const std::string& a, const std::string& b);

/// What a run's files come from. Either may be empty.
struct KeptFolders {
  std::string from;
  std::string tokenizer;
};
/// Copies them, durably; what was kept of other folders goes. The files that are there stay untouched where they
/// are of the same folders already.
void keep_files(checkpoint::Disk& disk, const std::string& output_dir, const KeptFolders& folders);

}  // namespace sherd::huggingface
