#include "engine/huggingface/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "engine/huggingface/config.h"

namespace sherd::huggingface {
namespace {

constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 30;
constexpr const char* kFromName = "from.json";
constexpr std::string_view kKeptName = "huggingface", kUnfinished = ".tmp";
constexpr auto kTokenizerFiles = std::to_array<std::string_view>({
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
});
constexpr auto kOthers = std::to_array<std::string_view>({kConfigName, "generation_config.json"});

}  // namespace

bool is_tokenizer_file(const std::string& name) {
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end();
}

std::vector<std::string> model_files(checkpoint::Disk& disk, const std::string& folder) {
  std::vector<std::string> names = checkpoint::list_directory(disk, folder);
  std::erase_if(names, [](const std::string& name) {
    return !is_tokenizer_file(name) &&
           std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end();
  });
  return names;
}

std::string kept_folder(const std::string& output_dir) {
  return fmt::format("{}/{}", output_dir, kKeptName);
}

std::vector<std::string> kept_names() {
  return {std::string(kKeptName), fmt::format("{}{}", kKeptName, kUnfinished)};
}

bool keeps(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from) {
  const std::string path = kept_folder(output_dir) + "/" + kFromName;
  if (!checkpoint::exists(disk, path)) return false;
  const nlohmann::json kept =
      checkpoint::parse_strict(checkpoint::read_file(disk, path, 1 << 20), path);
  return checkpoint::JsonNode(kept, path).member("from").text() == from;
}

void keep_files(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from) {
  if (keeps(disk, output_dir, from)) return;
  const std::string to = kept_folder(output_dir), beside = fmt::format("{}{}", to, kUnfinished);
  checkpoint::remove_tree(disk, beside);
  checkpoint::make_directory(disk, beside);
  for (const std::string& name : model_files(disk, from)) {
    checkpoint::write_new_file(disk, beside + "/" + name,
                               checkpoint::read_followed(disk, from + "/" + name, kMaxFileBytes));
  }
  checkpoint::write_new_file(disk, beside + "/" + kFromName,
                             nlohmann::json{{"from", from}}.dump() + "\n");
  checkpoint::sync_directory(disk, beside);
  checkpoint::remove_tree(disk, to);
  if (!checkpoint::rename_new(disk, beside, to)) throw DataError("{}: is there again", to);
  checkpoint::sync_directory(disk, output_dir);
}

}  // namespace sherd::huggingface
