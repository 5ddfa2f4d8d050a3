/// The Parquet and Arrow files of tests/reference/arrow/tables.py.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/data/arrow/arrow_rows.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::test {

/// For GTEST_SKIP.
inline constexpr const char* kNoArrow =
    "this build has no libsherd_arrow.so (./dev deps arrow), so Parquet and Arrow files aren't "
    "read";

/// Never under the thread sanitizer, which doesn't see what orders Arrow's own threads.
inline bool has_arrow() {
#ifdef __SANITIZE_THREAD__
  return false;
#endif
  for (const std::string& place : data::places_of_arrow_module()) {
    if (std::filesystem::exists(place)) return true;
  }
  return false;
}

inline std::string from_base64(const std::string& text) {
  static const std::string kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(c));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return bytes;
}

/// tables.py says what is in it.
inline const nlohmann::json& tables() {
  static const nlohmann::json kTables = [] {
    std::ifstream file(SHERD_SOURCE_DIR "/tests/engine/data/arrow/tables.json");
    return nlohmann::json::parse(file);
  }();
  return kTables;
}

/// Writes a file of one of the groups, "files", "others" or "folders"; its path.
inline std::string write_table(const TempFolder& folder, const std::string& group,
                               const std::string& name) {
  return folder.write(name, from_base64(tables().at(group).at(name).get<std::string>()));
}

/// The texts of "files" as lines of .jsonl; where they are null, so are these.
inline std::string texts_as_lines(const std::string& field = "text") {
  std::string lines;
  for (const nlohmann::json& text : tables().at("texts")) {
    lines += nlohmann::json{{field, text}}.dump() + "\n";
  }
  return lines;
}

}  // namespace sherd::test
