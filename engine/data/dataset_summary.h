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

/// Dataset::summary(). `passed_over` stands behind the number of files.
std::string summary_of(const Dataset& dataset, std::size_t num_files, std::string_view passed_over);

}  // namespace sherd::data
