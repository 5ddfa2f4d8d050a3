#include "engine/data/tokenizer/named_tokens.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"

namespace sherd::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kStandard = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// What transformers' classes name unless a file does; of those that read a BPE tokenizer.json.
struct ClassDefaults {
  std::string_view name;         // without "Fast"
  std::string_view model_types;  // which have the class without a "tokenizer_class"
  std::string_view beginning, end, unknown, padding;
};
constexpr auto kClasses = std::to_array<ClassDefaults>({
    {"GPT2Tokenizer", " gpt2 phi starcoder2 ", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>",
     ""},
    {"CodeGenTokenizer", " codegen ", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", ""},
    {"GPTNeoXTokenizer", " gpt_neox ", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>",
     "<|padding|>"},
    {"Qwen2Tokenizer", " qwen2 qwen3 ", "", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"},
    {"GemmaTokenizer", " gemma gemma2 gemma3_text ", "<bos>", "<eos>", "<unk>", "<pad>"},
    {"CohereTokenizer", " cohere cohere2 ", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>",
     "<PAD>"},
});

bool is_standard(std::string_view name) {
  return std::find(kStandard.begin(), kStandard.end(), name) != kStandard.end();
}

constexpr std::size_t kMostNamed = 1000;

// Whether a key of the file itself is read.
bool is_read(std::string_view key) {
  return key.ends_with("_token") || key == "extra_special_tokens" ||
         key == "added_tokens_decoder" || key == "tokenizer_class" || key == "model_type";
}

// Null if there is no such file. Keeps only keys that are read, and only a limited number, since
// the keys of an object are compared with each other.
Json read_object(const std::string& path) {
  constexpr std::int64_t kMostBytes = 16 << 20;
  constexpr std::size_t kMostKeys = 10 * kMostNamed;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const std::string text = read_small_file(path, kMostBytes);
  check_json_bounds(text, path);
  std::size_t num_keys = 0;
  bool inside = false;  // of a key that is read
  const auto keeps = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event != Json::parse_event_t::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    const bool is_read_here = depth == 1 ? is_read(key) : inside;
    if (depth == 1) inside = is_read_here && key != "added_tokens_decoder";
    if (is_read_here && ++num_keys > kMostKeys) {
      throw DataError("{}: more than {} keys name special tokens.", path, kMostKeys);
    }
    return is_read_here;
  };
  Json json = Json::parse(text, keeps, false);
  if (!json.is_object()) throw DataError("{}: isn't a JSON object.", path);
  return json;
}

bool flag(const Json& value, const char* name) {
  const auto found = value.find(name);
  return found != value.end() && found->is_boolean() && found->get<bool>();
}

// "<s>" or {"content": "<s>", "lstrip": ..., ...}
std::optional<AddedToken> token_of(const Json& value) {
  AddedToken token;
  token.special = true;
  if (value.is_string()) {
    token.content = value.get<std::string>();
    return token;
  }
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) {
    return std::nullopt;
  }
  token.content = value["content"].get<std::string>();
  token.normalized = flag(value, "normalized");
  token.single_word = flag(value, "single_word");
  token.lstrip = flag(value, "lstrip");
  token.rstrip = flag(value, "rstrip");
  return token;
}

std::string text_at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string()
             ? object[key].get<std::string>()
             : "";
}

const ClassDefaults* defaults_of(const Json& config, const std::string& folder) {
  std::string name = text_at(config, "tokenizer_class");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  const std::string type =
      name.empty() ? text_at(read_object(folder + "/config.json"), "model_type") : "";
  for (const ClassDefaults& one : kClasses) {
    const bool of_type =
        !type.empty() && one.model_types.find(" " + type + " ") != std::string_view::npos;
    if (one.name == name || of_type) return &one;
  }
  return nullptr;
}

class Names {
 public:
  // A null takes a name away that another file gave.
  void add(const Json& object, const std::string& where) {
    for (const auto& [key, value] : object.items()) {
      if (is_standard(key)) {
        said_.push_back(key);
        if (value.is_null()) {
          std::erase_if(tokens_, [&, &name = key](const NamedToken& t) { return t.name == name; });
        } else {
          set(key, value, where);
        }
      } else if (key.ends_with("_token") && value.is_string()) {
        set(key, value, where);
      } else if (key == "extra_special_tokens" && value.is_object()) {
        for (const auto& [name, token] : value.items()) set(name, token, where);
      }
    }
  }
  void add_defaults(const ClassDefaults& of) {
    const std::pair<const char*, std::string_view> defaults[] = {{"bos_token", of.beginning},
                                                                 {"eos_token", of.end},
                                                                 {"unk_token", of.unknown},
                                                                 {"pad_token", of.padding}};
    for (const auto& [name, token] : defaults) {
      if (token.empty() || std::ranges::find(said_, name) != said_.end()) continue;
      set(name, std::string(token), std::string(of.name));
      tokens_.back().is_default = true;
    }
  }
  std::vector<NamedToken> take() { return std::move(tokens_); }

 private:
  void set(const std::string& name, const Json& value, const std::string& where) {
    std::optional<AddedToken> token = token_of(value);
    if (!token) throw DataError("{}: {} isn't a token.", where, name);
    for (NamedToken& known : tokens_) {
      if (known.name != name) continue;
      known.token = std::move(*token);
      known.where = where;
      return;
    }
    if (tokens_.size() == kMostNamed) {
      throw DataError("{}: more than {} special tokens are named.", where, kMostNamed);
    }
    tokens_.push_back({name, std::move(*token), where});
  }

  std::vector<NamedToken> tokens_;
  std::vector<std::string> said_;  // standard names that a file has, null too
};

}  // namespace

std::vector<NamedToken> named_tokens(const std::string& folder) {
  const std::string config_path = folder + "/tokenizer_config.json";
  const std::string map_path = folder + "/special_tokens_map.json";
  const Json config = read_object(config_path);
  Names names;
  if (config.is_object()) names.add(config, config_path);
  const bool has_decoder = config.is_object() && config.contains("added_tokens_decoder");
  if (!has_decoder) {
    const Json map = read_object(map_path);
    if (map.is_object()) names.add(map, map_path);
  }
  if (const ClassDefaults* defaults = defaults_of(config, folder)) names.add_defaults(*defaults);
  return names.take();
}

const NamedToken* find_named(const std::vector<NamedToken>& tokens, std::string_view name) {
  const auto found = std::ranges::find(tokens, name, &NamedToken::name);
  return found == tokens.end() ? nullptr : &*found;
}

}  // namespace sherd::tokenizer
