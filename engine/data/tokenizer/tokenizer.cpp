#include "engine/data/tokenizer/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"
#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/json_node.h"
#include "engine/data/tokenizer/parts.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostFileBytes = std::int64_t{128} << 20;
constexpr std::int64_t kMostConfigBytes = std::int64_t{16} << 20;

std::optional<std::int32_t> id_of_named(const std::vector<NamedToken>& named, std::string_view name,
                                        const Tokenizer& tokenizer) {
  const NamedToken* token = find_named(named, name);
  if (!token) return std::nullopt;
  const std::optional<std::int32_t> id = tokenizer.id_of(token->token.content);
  if (!id) {
    throw DataError("{}: {} is \"{}\", which isn't in tokenizer.json.", token->where, name,
                    token->token.content.substr(0, 64));
  }
  return id;
}

void require_token(const Tokenizer& tokenizer, const std::string& token, const std::string& path) {
  if (tokenizer.id_of(token)) return;
  throw DataError(
      "{}: names the token \"{}\", which tokenizer.json lacks; save the tokenizer with "
      "transformers' AutoTokenizer once, which writes it there.",
      path, token.substr(0, 64));
}

/// transformers adds what only added_tokens.json names. Files that it wrote itself in the last
/// years have all of it in tokenizer.json, or "added_tokens_decoder" in tokenizer_config.json,
/// which hides added_tokens.json, and whose tokens it adds, too.
void refuse_other_added_tokens(const fs::path& folder, const Tokenizer& tokenizer) {
  const std::string path = (folder / "added_tokens.json").native();
  std::error_code error;
  if (!fs::exists(path, error)) return;
  const std::string text = read_small_file(path, kMostConfigBytes);
  check_json_bounds(text, path);
  const nlohmann::json tokens = nlohmann::json::parse(text, nullptr, false);
  if (!tokens.is_object()) throw DataError("{}: isn't a JSON object.", path);
  for (const auto& [token, id] : tokens.items()) require_token(tokenizer, token, path);
}

/// Where the text stops being UTF-8, or its size.
std::size_t valid_prefix(std::string_view text) {
  const auto bytes = data::as_bytes(text);
  std::size_t offset = 0;
  while (offset < bytes.size()) {
    if (bytes[offset] < 0x80) {
      ++offset;
      continue;
    }
    const int length = data::decode_utf8(bytes, offset).length;
    if (length == 0) break;
    offset += static_cast<std::size_t>(length);
  }
  return offset;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view json, std::string_view where,
                                                  const std::vector<std::string>& special_tokens,
                                                  std::vector<NamedToken> named) {
  std::vector<AddedToken> tokens;
  for (const NamedToken& one : named) tokens.push_back(one.token);
  std::unique_ptr<Parts> parts = parse_tokenizer(json, where, special_tokens, tokens);
  parts->named = std::move(named);
  const XXH128_hash_t hash = XXH3_128bits(json.data(), json.size());
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  std::copy(std::begin(bytes.digest), std::end(bytes.digest), parts->digest.begin());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(parts)));
}

std::shared_ptr<const Tokenizer> Tokenizer::open(const std::string& folder,
                                                 const std::vector<std::string>& special_tokens) {
  const std::string path = (fs::path(folder) / "tokenizer.json").native();
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (fs::exists(fs::path(folder) / "tokenizer.model", error)) {
      throw DataError(
          "{}: has tokenizer.model but no tokenizer.json; save the tokenizer with transformers' "
          "AutoTokenizer once, which writes tokenizer.json.",
          folder);
    }
    throw DataError("{}: has no tokenizer.json; give a folder with a Hugging Face tokenizer.",
                    folder);
  }
  auto tokenizer =
      std::const_pointer_cast<Tokenizer>(parse(read_small_file(path, kMostFileBytes), path,
                                               special_tokens, tokenizer::named_tokens(folder)));
  Parts& parts = *tokenizer->parts_;
  std::erase_if(parts.named, [&](const NamedToken& one) {
    return one.is_default && !tokenizer->id_of(one.token.content);
  });
  parts.beginning = id_of_named(parts.named, "bos_token", *tokenizer);
  parts.end = id_of_named(parts.named, "eos_token", *tokenizer);
  const std::string config_path = (fs::path(folder) / "tokenizer_config.json").native();
  if (!fs::exists(config_path, error)) {
    refuse_other_added_tokens(folder, *tokenizer);
    return tokenizer;
  }
  const std::string config_text = read_small_file(config_path, kMostConfigBytes);
  check_json_bounds(config_text, config_path);
  const nlohmann::json config = nlohmann::json::parse(config_text, nullptr, false);
  if (!config.is_object()) throw DataError("{}: isn't a JSON object.", config_path);
  const auto added = config.find("added_tokens_decoder");
  if (added == config.end()) refuse_other_added_tokens(folder, *tokenizer);
  if (added != config.end() && added->is_object()) {
    for (const auto& [id, token] : added->items()) {
      const auto content = token.is_object() ? token.find("content") : token.end();
      if (content == token.end() || !content->is_string()) continue;
      require_token(*tokenizer, content->get<std::string>(), config_path);
    }
  }
  const bool adds_beginning = JsonNode(config, config_path).flag("add_bos_token", false);
  if (adds_beginning && parts.beginning && !parts.before_document) {
    parts.before_document = {*parts.beginning};
  }
  return tokenizer;
}

std::int64_t Tokenizer::vocab_size() const {
  return std::ssize(parts_->texts);
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : parts_->added_tokens) {
    if (added.content == token) return added.id;
  }
  const auto found = parts_->vocabulary.find(std::string(token));
  if (found == parts_->vocabulary.end()) return std::nullopt;
  return found->second;
}

std::string_view Tokenizer::token_of(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return parts_->texts[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const std::string_view token = token_of(id);
    if (token.empty() || (skip_special && parts_->is_special[static_cast<std::size_t>(id)])) {
      continue;
    }
    tokens.emplace_back(token);
  }
  return decode_tokens(parts_->decoder, std::move(tokens));
}

std::int64_t Tokenizer::num_bytes(std::int32_t id) const {
  const std::string token(token_of(id));
  if (token.empty() || parts_->is_special[static_cast<std::size_t>(id)]) return 0;
  const bool spells_bytes = std::ranges::any_of(parts_->decoder, [](const DecoderStep& step) {
    return std::holds_alternative<ByteLevelDecoder>(step);
  });
  if (spells_bytes) return std::ssize(bytes_of_alphabet(token).value_or(token));
  if (byte_of_token(token) >= 0) return 1;
  // After another word, since some decoders remove what comes before the first one.
  const auto size = [&](std::vector<std::string> tokens) {
    return std::ssize(decode_tokens(parts_->decoder, std::move(tokens)));
  };
  return size({"a", token}) - size({"a"});
}

const std::vector<NamedToken>& Tokenizer::named_tokens() const {
  return parts_->named;
}
std::optional<std::int32_t> Tokenizer::beginning() const {
  return parts_->beginning;
}
std::optional<std::int32_t> Tokenizer::end() const {
  return parts_->end;
}
std::span<const std::int32_t> Tokenizer::before_document() const {
  if (!parts_->before_document) return {};
  return *parts_->before_document;
}
const std::array<std::uint8_t, 16>& Tokenizer::digest() const {
  return parts_->digest;
}
const std::vector<std::string>& Tokenizer::notes() const {
  return parts_->notes;
}

std::vector<std::string> Tokenizer::special_tokens() const {
  std::vector<std::string> spellings;
  for (const AddedToken& token : parts_->added_tokens) {
    if (token.special) spellings.push_back(token.content);
  }
  return spellings;
}

struct Encoder::State {
  explicit State(const Parts& parts)
      : bpe(*parts.bpe, parts.known_words()), pre_tokenizer(*parts.pre_tokenizer) {}
  BpeEncoder bpe;
  PreTokenizer::Scratch pre_tokenizer;
  Normalizer::Scratch normalizer;
  bool after_token = false;  // what was encoded last is an added token
};

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), state_(std::make_unique<State>(*tokenizer_->parts_)) {}
Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, SpecialTokens policy, std::vector<std::int32_t>& ids) {
  encode(Part{.text = text, .trusted = {}, .policy = policy}, ids);
}

void Encoder::encode_part(std::string_view text, std::string_view trusted, bool continues,
                          std::vector<std::int32_t>& ids) {
  SHERD_CHECK(trusted.size() == text.size(), "{} marks for {} bytes", trusted.size(), text.size());
  encode(Part{text, trusted, SpecialTokens::kAsTokens, continues}, ids);
}

void Encoder::encode(const Part& document, std::vector<std::int32_t>& ids) {
  const std::string_view text = document.text;
  const std::size_t valid = valid_prefix(text);
  if (valid != text.size()) {
    throw DataError("not UTF-8 at byte {} (0x{:02x})", valid,
                    static_cast<std::uint8_t>(text[valid]));
  }
  const Parts& parts = *tokenizer_->parts_;
  const std::function<void(std::string_view)> on_word = [&](std::string_view word) {
    state_->after_token = false;
    state_->bpe.encode(word, ids);
  };
  const std::function<void(const AddedToken&)> on_token = [&](const AddedToken& token) {
    state_->bpe.finish(ids);
    state_->after_token = true;
    ids.push_back(token.id);
  };
  const std::size_t size_before = ids.size();
  const bool distrusted = document.trusted.find('\0') != std::string_view::npos;
  const SpecialTokens normalised_policy = distrusted ? SpecialTokens::kAsText : document.policy;
  // As if the parts were one text: a piece after an added token has a beginning of its own.
  const Place of_first = !document.continues   ? Place::kStart
                         : state_->after_token ? Place::kInside
                                               : Place::kJoined;
  Place of_piece = of_first;
  const std::function<void(std::string_view, bool)> on_normal = [&](std::string_view part,
                                                                    bool at_start) {
    parts.pre_tokenizer->split(part, at_start ? of_piece : Place::kInside, state_->pre_tokenizer,
                               on_word);
  };
  const std::function<void(std::string_view, bool)> on_raw = [&](std::string_view part,
                                                                 bool at_start) {
    of_piece = at_start ? of_first : Place::kInside;
    if (parts.normalizer.changes_nothing()) {
      parts.normalized_tokens->split(part, normalised_policy, on_normal, on_token);
    } else {
      const std::string_view normal = parts.normalizer.apply(part, state_->normalizer, of_piece);
      parts.normalized_tokens->split(normal, normalised_policy, on_normal, on_token);
    }
  };
  try {
    parts.raw_tokens->split(text, document.policy, on_raw, on_token, document.trusted);
    state_->bpe.finish(ids);
  } catch (...) {
    state_->bpe.drop();
    ids.resize(size_before);
    throw;
  }
}

}  // namespace sherd::tokenizer
