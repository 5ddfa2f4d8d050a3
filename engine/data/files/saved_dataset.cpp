#include "engine/data/files/saved_dataset.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kState = "state.json";
constexpr const char* kInfo = "dataset_info.json";
constexpr const char* kDict = "dataset_dict.json";
constexpr std::int64_t kMostBytes = std::int64_t{1} << 24;

bool has_file(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::is_regular_file(folder / name, error);
}

Json read_json(const fs::path& file) {
  const std::string text = read_small_file(file.native(), kMostBytes);
  check_json_bounds(text, file.native());
  return Json::parse(text, nullptr, false);
}

}  // namespace

bool is_saved_dataset(const fs::path& folder) {
  return has_file(folder, kState) && has_file(folder, kInfo);
}

std::vector<std::string> files_of_saved_dataset(const fs::path& folder) {
  const std::string state = (folder / kState).native();
  const Json json = read_json(state);
  const auto refuse = [&](std::string_view problem) {
    throw DataError(
        "{}: {}; a folder written by save_to_disk of Hugging Face datasets was expected.", state,
        problem);
  };
  if (!json.is_object()) refuse("isn't a JSON object");
  for (const char* key : {"_indices_files", "_indices_data_files"}) {
    if (json.contains(key) && !json[key].is_null() && !json[key].empty()) {
      refuse("selects rows by a file of indices, which isn't read; save it with a newer version");
    }
  }
  if (!json.contains("_data_files") || !json["_data_files"].is_array()) {
    refuse("has no list \"_data_files\"");
  }
  std::vector<std::string> paths;
  for (const Json& file : json["_data_files"]) {
    if (!file.is_object() || !file.contains("filename") || !file["filename"].is_string()) {
      refuse("\"_data_files\" has an entry without a \"filename\"");
    }
    const fs::path name = file["filename"].get<std::string>();
    if (!name.native().ends_with(".arrow") || name.filename() != name) {
      refuse("\"_data_files\" names " + name.native() + ", which isn't an .arrow file here");
    }
    if (!has_file(folder, name.c_str())) refuse("names " + name.native() + ", which isn't there");
    paths.push_back((folder / name).native());
  }
  if (paths.empty()) refuse("lists no files");
  return paths;
}

void refuse_dataset_dict(const fs::path& folder) {
  if (!has_file(folder, kDict)) return;
  const Json json = read_json(folder / kDict);
  std::string names;
  if (json.is_object() && json.contains("splits") && json["splits"].is_array()) {
    for (const Json& split : json["splits"]) {
      if (split.is_string()) names += (names.empty() ? "" : ", ") + split.get<std::string>();
    }
  }
  if (names.empty()) {
    throw DataError(
        "{}: is a Hugging Face DatasetDict whose {} lists no splits; give the folder of a split.",
        folder.native(), kDict);
  }
  throw DataError(
      "{}: is a Hugging Face DatasetDict with the splits {}; give the folder of one, such as {}.",
      folder.native(), names, (folder / names.substr(0, names.find(','))).native());
}

}  // namespace sherd::data
