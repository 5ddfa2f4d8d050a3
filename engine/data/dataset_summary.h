/// What a run says of its data before it begins.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/data/dataset.h"

namespace sherd::data {

/// "1 file", "2 files".
std::string files_text(std::size_t count);

/// "2 longer than a sequence (first chats.jsonl:7: ...); 1 not JSON (...)", the most frequent reason first.
std::string left_out_text(const ChatCounts& counts);

/// What of a folder isn't read.
struct PassedOver {
  int num_empty = 0, num_binary = 0;
  int num_of_runs = 0;  ///< files and folders
};

/// The files of a dataset, and the texts in them; equal where each file is one text.
struct SummarisedFiles {
  std::size_t num_files = 0, num_texts = 0;
  PassedOver passed_over{};
};

/// Dataset::summary().
std::string summary_of(const Dataset& dataset, const SummarisedFiles& files);

}  // namespace sherd::data
