/// The summary of its data that a run prints before it begins.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/data/dataset.h"

namespace sherd::data {

/// "1 file", "2 files".
std::string files_text(std::size_t count);

/// "2 longer than a sequence (first chats.jsonl:7: ...); 1 not JSON (...)", the most frequent
/// reason first.
std::string left_out_text(const ChatCounts& counts);

/// Files of a folder that aren't read.
struct PassedOver {
  int num_empty = 0, num_binary = 0;
  int num_of_runs = 0;        ///< files and folders of training runs
  std::int64_t num_null = 0;  ///< lines and rows whose text is null
};

/// Numbers of files in a dataset and of texts in them; equal if each file is one text.
struct SummarisedFiles {
  std::size_t num_files = 0, num_texts = 0;
  PassedOver passed_over{};
};

/// Dataset::summary().
std::string summary_of(const Dataset& dataset, const SummarisedFiles& files);

}  // namespace sherd::data
