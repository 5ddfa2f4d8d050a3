/// Token ids in a column of a .parquet or .arrow file: each row is a document, a list of ids, in
/// memory, 4 bytes each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/data/files/text_files.h"
#include "engine/data/files/token_file.h"

namespace sherd::data {

/// The column is a list, large_list or fixed-size list of whole numbers. A null is an empty
/// document.
/// Errors   DataError as ArrowRows; a row with an id that isn't below `vocab_size`; no ids
std::unique_ptr<const TokenFile> make_id_table(const std::string& path, const std::string& column,
                                               std::int64_t vocab_size);

/// Of all ids of a file.
std::uint64_t fingerprint_of_ids(const TokenFile& file);

/// The token files of a path: of a folder or glob, the .bin files; without any, the tables.
/// Errors   as find_text_files
TextFiles find_token_files(const std::string& path, std::string_view key);

}  // namespace sherd::data
