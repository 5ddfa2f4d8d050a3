#include "engine/huggingface/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "engine/huggingface/config.h"

namespace sherd::huggingface {
namespace {

constexpr std::int64_t kMaxModelFileBytes = std::int64_t{1} << 30;
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
constexpr std::string_view kTemplates = "additional_chat_templates";
constexpr std::string_view kTemplateEnding = ".jinja";
constexpr auto kOthers = std::to_array<std::string_view>({kConfigName, "generation_config.json"});

}  // namespace

bool is_tokenizer_file(const std::string& name) {
  if (name.starts_with(fmt::format("{}/", kTemplates))) return true;
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end();
}

std::vector<std::string> model_files(checkpoint::Disk& disk, const std::string& folder) {
  std::vector<std::string> names = checkpoint::list_directory(disk, folder);
  std::erase_if(names, [](const std::string& name) {
    return !is_tokenizer_file(name) &&
           std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end();
  });
  const std::string templates = fmt::format("{}/{}", folder, kTemplates);
  std::error_code error;
  if (!std::filesystem::is_directory(templates, error)) return names;
  for (const std::string& name : checkpoint::list_directory(disk, templates)) {
    if (name.ends_with(kTemplateEnding)) names.push_back(fmt::format("{}/{}", kTemplates, name));
  }
  return names;
}

void write_model_file(checkpoint::Disk& disk, const std::string& folder, const std::string& name,
                      std::string_view text) {
  const std::string path = fmt::format("{}/{}", folder, name);
  const std::string parent = checkpoint::folder_of(path);
  if (name.find('/') != std::string::npos) checkpoint::make_directory(disk, parent);
  checkpoint::write_new_file(disk, path, text);
  if (name.find('/') != std::string::npos) checkpoint::sync_directory(disk, parent);
}

std::string kept_folder(const std::string& output_dir) {
  return fmt::format("{}/{}", output_dir, kKeptName);
}

std::vector<std::string> kept_names() {
  return {std::string(kKeptName), fmt::format("{}{}", kKeptName, kUnfinished)};
}

namespace {

// A member of from.json; "" where there is none.
std::string noted(checkpoint::Disk& disk, const std::string& kept, const char* member) {
  const std::string path = kept + "/" + kFromName;
  if (!checkpoint::exists(disk, path)) return "";
  const nlohmann::json note =
      checkpoint::parse_strict(checkpoint::read_file(disk, path, 1 << 20), path);
  const auto found = note.is_object() ? note.find(member) : note.end();
  if (found == note.end()) return "";
  return checkpoint::JsonNode(note, path).member(member).text();
}

void copy_files(checkpoint::Disk& disk, const std::string& from, const std::string& to,
                bool of_tokenizer) {
  for (const std::string& name : model_files(disk, from)) {
    if (is_tokenizer_file(name) != of_tokenizer) continue;
    write_model_file(disk, to, name,
                     checkpoint::read_followed(disk, from + "/" + name, kMaxModelFileBytes));
  }
}

}  // namespace

bool keeps(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from) {
  return !from.empty() && noted(disk, kept_folder(output_dir), "from") == from;
}

bool keeps_tokenizer(checkpoint::Disk& disk, const std::string& kept,
                     const std::string& tokenizer) {
  if (tokenizer.empty() || tokenizer == kept) return true;
  const std::string own = noted(disk, kept, "tokenizer");  // older programs knew one folder only
  return (own.empty() ? noted(disk, kept, "from") : own) == tokenizer;
}

bool have_same_tokenizer(checkpoint::Disk& disk, const std::string& a, const std::string& b) {
  const std::string of_a = a + "/tokenizer.json", of_b = b + "/tokenizer.json";
  return of_a == of_b || !checkpoint::exists(disk, of_a) || !checkpoint::exists(disk, of_b) ||
         checkpoint::read_followed(disk, of_a, kMaxModelFileBytes) ==
             checkpoint::read_followed(disk, of_b, kMaxModelFileBytes);
}

void keep_files(checkpoint::Disk& disk, const std::string& output_dir, const KeptFolders& folders) {
  const std::string to = kept_folder(output_dir), beside = fmt::format("{}{}", to, kUnfinished);
  const std::string& from = folders.from;
  const std::string tokenizer = folders.tokenizer.empty() ? from : folders.tokenizer;
  if (noted(disk, to, "from") == from && keeps_tokenizer(disk, to, folders.tokenizer)) return;
  checkpoint::remove_tree(disk, beside);
  checkpoint::make_directory(disk, beside);
  if (!from.empty()) copy_files(disk, from, beside, false);
  copy_files(disk, tokenizer, beside, true);
  checkpoint::write_new_file(
      disk, beside + "/" + kFromName,
      nlohmann::json{{"from", from}, {"tokenizer", tokenizer}}.dump() + "\n");
  checkpoint::sync_directory(disk, beside);
  checkpoint::remove_tree(disk, to);
  if (!checkpoint::rename_new(disk, beside, to)) throw DataError("{}: is there again", to);
  checkpoint::sync_directory(disk, output_dir);
}

}  // namespace sherd::huggingface
