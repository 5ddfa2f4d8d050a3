#include "engine/data/tokenizer/parts.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_bounds.h"
#include "engine/data/tokenizer/json_node.h"
#include "engine/data/tokenizer/parse_parts.h"

namespace sherd::tokenizer {
namespace {

/// Larger than any vocabulary, and small enough that a table of ids is no burden.
constexpr std::uint64_t kMaxId = (1u << 24) - 1;
constexpr std::size_t kMaxAddedToken = 4096;
/// Of all added tokens together, as normalisers make them.
constexpr std::size_t kMostSpellings = std::size_t{64} << 20;

class PartsParser {
 public:
  explicit PartsParser(const JsonNode& file) : file_(file), parts_(std::make_unique<Parts>()) {}

  std::unique_ptr<Parts> parse(const std::vector<std::string>& special_tokens,
                               const std::vector<AddedToken>& named) {
    file_.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                "post_processor", "decoder", "model"});
    require_bpe(file_["model"]);
    for (const char* key : {"truncation", "padding"}) {
      if (!file_.has(key)) continue;
      parts_->notes.push_back(
          fmt::format("{} asks for {}, which is left out.", file_.place(), key));
    }
    if (file_.has("normalizer")) {
      parts_->normalizer = Normalizer(parse_normalizer(file_["normalizer"]));
    }
    ParsedPreTokenizer pre_tokenizer;
    if (file_.has("pre_tokenizer")) {
      pre_tokenizer = parse_pre_tokenizer(file_["pre_tokenizer"]);
    }
    parts_->pre_tokenizer = std::make_unique<PreTokenizer>(std::move(pre_tokenizer.steps));
    if (file_.has("decoder")) parts_->decoder = parse_decoder(file_["decoder"]);
    parse_model(file_["model"], pre_tokenizer.byte_level);
    if (file_.has("added_tokens")) add_tokens(file_["added_tokens"]);
    for (const AddedToken& token : named) add_named(token);
    for (const std::string& token : special_tokens) add_special(token);
    index_texts();
    if (file_.has("post_processor")) add_before_document(file_["post_processor"]);
    make_finders();
    return std::move(parts_);
  }

 private:
  /// Checked first: other models have other parts, so the model type is the most useful message.
  static void require_bpe(const JsonNode& model) {
    // Old files name no type; the keys tell.
    const std::string type = model.has("type") ? model.type() : "BPE";
    if (type == "BPE") return;
    model.refuse(fmt::format("{} isn't supported; Sherd knows tokenizers of type BPE.", type));
  }

  void parse_model(const JsonNode& model, bool byte_level) {
    model.only({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.has("dropout") && model["dropout"].value() != 0) {
      model.refuse("dropout makes ids random and isn't supported; set it to null.");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.has(key) && !model[key].text().empty()) {
        model.refuse(fmt::format("{} isn't supported.", key));
      }
    }
    parse_vocabulary(model["vocab"]);
    BpeOptions options{.byte_level = byte_level,
                       .byte_fallback = model.flag("byte_fallback", false),
                       .fuse_unknown = model.flag("fuse_unk", false),
                       .ignore_merges = model.flag("ignore_merges", false)};
    if (model.has("unk_token")) {
      options.unknown_id = id_in_vocabulary(model["unk_token"], model["unk_token"].text());
    }
    parts_->bpe = std::make_unique<Bpe>(parts_->vocabulary, parse_merges(model["merges"]), options);
  }

  void parse_vocabulary(const JsonNode& vocabulary) {
    if (!vocabulary.value().is_object()) vocabulary.refuse("expected an object of tokens and ids.");
    std::vector<std::int32_t> ids;
    for (const auto& [token, id] : vocabulary.value().items()) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxId) {
        vocabulary.refuse(fmt::format("the id of \"{}\" isn't a whole number from 0 to {}.",
                                      token.substr(0, 64), kMaxId));
      }
      ids.push_back(static_cast<std::int32_t>(id.get<std::uint64_t>()));
      parts_->vocabulary[token] = ids.back();
    }
    if (ids.empty()) vocabulary.refuse("has no tokens.");
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    if (twice != ids.end()) vocabulary.refuse(fmt::format("two tokens have the id {}.", *twice));
    // So that the table of texts isn't larger than the file.
    if (static_cast<std::size_t>(ids.back()) > 16 * ids.size() + 1'000'000) {
      vocabulary.refuse(fmt::format("{} tokens have ids up to {}.", ids.size(), ids.back()));
    }
  }

  std::int32_t id_in_vocabulary(const JsonNode& node, const std::string& token) const {
    const auto found = parts_->vocabulary.find(token);
    if (found != parts_->vocabulary.end()) return found->second;
    node.refuse(fmt::format("\"{}\" isn't in the vocabulary.", token.substr(0, 64)));
  }

  std::vector<MergeTable::Merge> parse_merges(const JsonNode& merges) const {
    if (!merges.value().is_array()) merges.refuse("expected a list.");
    std::vector<MergeTable::Merge> result;
    std::size_t line = 0;
    for (const nlohmann::json& merge : merges.value()) {
      const JsonNode node(merge, "");
      const std::size_t number = line++;
      std::string left;
      std::string right;
      if (merge.is_string()) {
        const std::string text = merge.get<std::string>();
        if (text.starts_with("#version")) continue;
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          refuse_merge(merges, number, "isn't two tokens with a space between");
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse_merge(merges, number, "isn't a pair of tokens");
      }
      std::array<std::int32_t, 3> ids{};
      const std::array<std::string, 3> texts = {left, right, left + right};
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto found = parts_->vocabulary.find(texts[i]);
        if (found == parts_->vocabulary.end()) {
          refuse_merge(
              merges, number,
              fmt::format("names \"{}\", which isn't in the vocabulary", texts[i].substr(0, 64)));
        }
        ids[i] = found->second;
      }
      // An empty half would merge a symbol with itself for ever.
      if (left.empty() || right.empty()) refuse_merge(merges, number, "has an empty half");
      result.push_back({ids[0], ids[1], ids[2]});
    }
    return result;
  }

  [[noreturn]] static void refuse_merge(const JsonNode& merges, std::size_t number,
                                        std::string_view problem) {
    merges.refuse(fmt::format("merge {} {}.", number, problem));
  }

  void add_tokens(const JsonNode& list) {
    for (const JsonNode& node : list.elements()) {
      node.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{.content = node["content"].text(),
                       .special = node.flag("special", false),
                       .normalized = node.flag("normalized", true),
                       .single_word = node.flag("single_word", false),
                       .lstrip = node.flag("lstrip", false),
                       .rstrip = node.flag("rstrip", false)};
      const std::uint64_t stated = node["id"].number();
      if (token.content.empty()) node.refuse("the token is empty.");
      if (token.content.size() > kMaxAddedToken) node.refuse("the token is above 4,096 bytes.");
      const auto same = added_.find(token.content);
      if (same != added_.end()) node.refuse("the same token is listed twice.");
      token.id = next_id(token.content);
      if (stated != static_cast<std::uint64_t>(token.id)) {
        node.refuse(fmt::format("\"{}\" has the id {}, but its place gives it {}.",
                                token.content.substr(0, 64), stated, token.id));
      }
      added_[token.content] = token.id;
      parts_->added_tokens.push_back(std::move(token));
    }
  }

  /// A token of the model that the folder names as special (named_tokens.h).
  void add_named(AddedToken token) {
    const bool is_models = parts_->vocabulary.contains(token.content);
    if (!is_models || added_.contains(token.content)) return;
    if (token.content.size() > kMaxAddedToken) {
      throw DataError("{}: a named special token has {} bytes; 1 to {} are taken.", file_.place(),
                      token.content.size(), kMaxAddedToken);
    }
    token.id = added_[token.content] = next_id(token.content);
    parts_->added_tokens.push_back(std::move(token));
  }

  /// One that the file hasn't.
  void add_special(const std::string& content) {
    if (content.empty() || content.size() > kMaxAddedToken) {
      throw DataError("{}: a token to add has {} bytes; 1 to {} are taken.", file_.place(),
                      content.size(), kMaxAddedToken);
    }
    if (parts_->vocabulary.contains(content) || added_.contains(content)) {
      throw DataError("{}: \"{}\", a token to add, is one of its tokens already.", file_.place(),
                      content.substr(0, 64));
    }
    added_[content] = next_id(content);
    parts_->added_tokens.push_back({.content = content, .id = added_[content], .special = true});
  }

  /// The id that the library gives to an added token: the model's own id if it has the token, else
  /// one more than all others.
  std::int32_t next_id(const std::string& content) {
    const auto known = parts_->vocabulary.find(content);
    if (known != parts_->vocabulary.end()) {
      largest_added_ = std::max<std::int64_t>(largest_added_, known->second);
      return known->second;
    }
    const auto size = static_cast<std::int64_t>(parts_->vocabulary.size());
    largest_added_ = largest_added_ >= size ? largest_added_ + 1 : size;
    return static_cast<std::int32_t>(largest_added_);
  }

  std::string spelling_of(const AddedToken& token) {
    std::string spelling =
        token.normalized ? parts_->normalizer.apply(token.content) : token.content;
    spelled_bytes_ += spelling.size();
    if (spelled_bytes_ <= 2 * kMostSpellings) return spelling;  // each is spelled twice
    throw DataError("{}: its added tokens have more than {} bytes when they are normalised.",
                    file_.place(), kMostSpellings);
  }

  void index_texts() {
    std::int32_t largest = 0;
    for (const auto& [text, id] : parts_->vocabulary) largest = std::max(largest, id);
    for (const AddedToken& token : parts_->added_tokens) largest = std::max(largest, token.id);
    parts_->texts.resize(static_cast<std::size_t>(largest) + 1);
    parts_->is_special.resize(parts_->texts.size());
    for (const auto& [text, id] : parts_->vocabulary) {
      parts_->texts[static_cast<std::size_t>(id)] = text;
    }
    for (const AddedToken& token : parts_->added_tokens) {
      // The library gives a token that is looked for in normal form out in normal form, and then
      // doesn't recognise it as special.
      const std::string text = spelling_of(token);
      parts_->texts[static_cast<std::size_t>(token.id)] = text;
      parts_->is_special[static_cast<std::size_t>(token.id)] =
          token.special && text == token.content;
    }
  }

  void add_before_document(const JsonNode& post_processor) {
    parts_->before_document = parse_post_processor(post_processor);
    if (!parts_->before_document) return;
    for (const std::int32_t id : *parts_->before_document) {
      if (id < std::ssize(parts_->texts) && !parts_->texts[static_cast<std::size_t>(id)].empty()) {
        continue;
      }
      post_processor.refuse(fmt::format("adds the id {}, which no token has.", id));
    }
  }

  void make_finders() {
    std::array<std::vector<AddedToken>, 2> tokens;
    std::array<std::vector<std::string>, 2> spellings;
    for (const bool special : {true, false}) {
      for (const AddedToken& token : parts_->added_tokens) {
        if (token.special != special) continue;
        const std::string spelling = spelling_of(token);
        if (spelling.empty()) {
          throw DataError("{}: the added token \"{}\" is empty when it is normalised.",
                          file_.place(), token.content.substr(0, 64));
        }
        tokens[token.normalized].push_back(token);
        spellings[token.normalized].push_back(spelling);
      }
    }
    parts_->raw_tokens = std::make_unique<AddedTokenFinder>(std::move(tokens[0]), spellings[0]);
    parts_->normalized_tokens =
        std::make_unique<AddedTokenFinder>(std::move(tokens[1]), spellings[1]);
  }

  const JsonNode& file_;
  std::unique_ptr<Parts> parts_;
  std::unordered_map<std::string, std::int32_t> added_;
  std::int64_t largest_added_ = -1;
  std::size_t spelled_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Parts> parse_tokenizer(std::string_view text, std::string_view where,
                                       const std::vector<std::string>& special_tokens,
                                       const std::vector<AddedToken>& named) {
  check_json_bounds(text, where);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    const std::string message = error.what();
    throw DataError("{}: isn't JSON ({}).", where, message.substr(0, 200));
  }
  const JsonNode file(json, std::string(where));
  return PartsParser(file).parse(special_tokens, named);
}

}  // namespace sherd::tokenizer
