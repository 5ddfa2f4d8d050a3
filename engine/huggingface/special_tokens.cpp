#include "engine/huggingface/special_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"

namespace sherd::huggingface {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMaxFileBytes = std::int64_t{512} << 20;
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

ordered_json parsed(std::string_view text, const std::string& path) {
  return checkpoint::parse_strict_ordered(text, path);
}

std::int64_t id_of(const ordered_json& value, const std::string& path) {
  if (!value.is_number_unsigned()) throw DataError("{}: an id isn't a whole number", path);
  return value.get<std::int64_t>();
}

struct Ids {
  std::vector<std::int64_t> added;  ///< of the tokens, in their order
  std::int64_t count = 0;           ///< one more than the largest of all
};

Ids ids_of(const ordered_json& file, const std::string& path,
           const std::vector<std::string>& tokens) {
  const auto model = file.find("model");
  const auto vocabulary = file.is_object() && model != file.end() && model->is_object()
                              ? model->find("vocab")
                              : ordered_json::const_iterator();
  if (!file.is_object() || model == file.end() || !model->is_object() ||
      vocabulary == model->end() || !vocabulary->is_object()) {
    throw DataError("{}: has no model with a vocabulary of tokens and ids", path);
  }
  const auto refuse_known = [&](const std::string& token) {
    if (std::ranges::find(tokens, token) == tokens.end()) return;
    throw UsageError("model.add_special_tokens: \"{}\" is a token of {} already; leave it out.",
                     token, path);
  };
  std::int64_t largest = -1, largest_added = -1;
  for (const auto& [token, id] : vocabulary->items()) {
    refuse_known(token);
    largest = std::max(largest, id_of(id, path));
  }
  if (const auto list = file.find("added_tokens"); list != file.end() && list->is_array()) {
    for (const ordered_json& token : *list) {
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string() ||
          !token.contains("id")) {
        throw DataError("{}: an added token has no content or no id", path);
      }
      refuse_known(token["content"].get<std::string>());
      largest_added = std::max(largest_added, id_of(token["id"], path));
    }
  }
  const auto size = static_cast<std::int64_t>(vocabulary->size());
  std::int64_t next = std::max(largest_added + 1, size);
  Ids ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) ids.added.push_back(next++);
  ids.count = std::max(largest + 1, next);
  return ids;
}

ordered_json description(const std::string& token) {
  return {{"content", token}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},  {"normalized", false},  {"special", true}};
}

}  // namespace

std::int64_t num_ids_with(checkpoint::Disk& disk, const std::string& folder,
                          const std::vector<std::string>& tokens) {
  const std::string path = folder + "/" + kTokenizer;
  return ids_of(parsed(checkpoint::read_followed(disk, path, kMaxFileBytes), path), path, tokens)
      .count;
}

void add_special_tokens(const std::vector<std::string>& tokens,
                        std::map<std::string, std::string>& files) {
  const auto found = files.find(kTokenizer);
  if (tokens.empty() || found == files.end()) return;
  ordered_json file = parsed(found->second, kTokenizer);
  const Ids ids = ids_of(file, kTokenizer, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ordered_json token = {{"id", ids.added[i]}};
    token.update(description(tokens[i]));
    file["added_tokens"].push_back(std::move(token));
  }
  found->second = file.dump(2) + "\n";
  const auto config = files.find(kTokenizerConfig);
  if (config == files.end()) return;
  ordered_json settings = parsed(config->second, kTokenizerConfig);
  const auto list = settings.find("added_tokens_decoder");
  if (list == settings.end() || !list->is_object()) return;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    (*list)[std::to_string(ids.added[i])] = description(tokens[i]);
  }
  config->second = settings.dump(2) + "\n";
}

}  // namespace sherd::huggingface
