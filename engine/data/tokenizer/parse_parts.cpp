#include "engine/data/tokenizer/parse_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxSteps = 64;      ///< of a normaliser, a pre-tokenizer, a decoder
constexpr std::size_t kMaxBefore = 1'000;  ///< tokens before a document
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

SplitPattern regex(std::string_view source, const JsonNode& node) {
  return {parse_pattern(source, node.place()), node.place()};
}

[[noreturn]] void refuse_type(const JsonNode& node, std::string_view part) {
  node.refuse(fmt::format("the {} {} isn't supported.", part, node.type()));
}

void check_depth(const JsonNode& node, int depth) {
  if (depth > kMaxDepth) node.refuse("parts are nested too deeply.");
}

/// Each goes through the whole text.
void check_steps(const JsonNode& node, std::size_t steps) {
  if (steps > kMaxSteps)
    node.refuse(fmt::format("more than {} parts aren't supported.", kMaxSteps));
}

/// {"String": "..."} or {"Regex": "..."}
bool is_regex(const JsonNode& pattern) {
  pattern.only({"String", "Regex"});
  if (pattern.has("String") == pattern.has("Regex")) {
    pattern.refuse("expected one of \"String\" and \"Regex\".");
  }
  return pattern.has("Regex");
}

std::string text_pattern(const JsonNode& pattern) {
  const JsonNode text = pattern["String"];
  if (text.text().empty()) text.refuse("an empty pattern isn't supported.");
  return text.text();
}

SplitPattern parse_split_pattern(const JsonNode& pattern) {
  if (is_regex(pattern)) return regex(pattern["Regex"].text(), pattern);
  return {literal_pattern(text_pattern(pattern), pattern.place()), pattern.place()};
}

void add_normalizer(const JsonNode& node, int depth, std::vector<NormalizerStep>& steps) {
  check_depth(node, depth);
  check_steps(node, steps.size());
  const std::string type = node.type();
  constexpr std::array<std::string_view, 4> kForms = {"NFC", "NFD", "NFKC", "NFKD"};
  for (std::size_t form = 0; form < kForms.size(); ++form) {
    if (type != kForms[form]) continue;
    node.only({});
    steps.emplace_back(ToNormalForm{static_cast<NormalForm>(form)});
    return;
  }
  if (type == "Sequence") {
    node.only({"normalizers"});
    for (const JsonNode& one : node["normalizers"].elements())
      add_normalizer(one, depth + 1, steps);
  } else if (type == "Prepend") {
    node.only({"prepend"});
    steps.emplace_back(Prepend{node["prepend"].text()});
  } else if (type == "Replace") {
    node.only({"pattern", "content"});
    const JsonNode pattern = node["pattern"];
    const std::string content = node["content"].text();
    if (is_regex(pattern)) {
      steps.emplace_back(ReplacePattern{parse_split_pattern(pattern), content});
    } else {
      steps.emplace_back(ReplaceText{text_pattern(pattern), content});
    }
  } else {
    refuse_type(node, "normaliser");
  }
}

SplitBehavior parse_behavior(const JsonNode& node) {
  constexpr std::array<std::string_view, 5> kNames = {"Removed", "Isolated", "MergedWithPrevious",
                                                      "MergedWithNext", "Contiguous"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (node.text() == kNames[i]) return static_cast<SplitBehavior>(i);
  }
  node.refuse("expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous.");
}

/// One character, as it is written.
std::string one_character(const JsonNode& node) {
  const std::string text = node.text();
  if (text.empty() ||
      data::decode_utf8(data::as_bytes(text), 0).length != static_cast<int>(text.size())) {
    node.refuse("expected one character.");
  }
  return text;
}

MetaspaceStep parse_metaspace(const JsonNode& node) {
  node.only({"replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  using enum MetaspaceStep::Prepend;
  const std::string scheme =
      node.has("prepend_scheme") ? node["prepend_scheme"].text() : std::string("always");
  MetaspaceStep step{.replacement = one_character(node["replacement"])};
  if (scheme == "always") {
    step.prepend = kAlways;
  } else if (scheme == "first") {
    step.prepend = kFirst;
  } else if (scheme == "never") {
    step.prepend = kNever;
  } else {
    node.refuse("prepend_scheme isn't always, first or never.");
  }
  if (!node.flag("add_prefix_space", true) && step.prepend != kNever) {
    node.refuse("add_prefix_space is false, but prepend_scheme isn't never.");
  }
  step.split = node.flag("split", true);
  return step;
}

void add_pre_tokenizer(const JsonNode& node, int depth, ParsedPreTokenizer& parsed) {
  check_depth(node, depth);
  check_steps(node, parsed.steps.size());
  const std::string type = node.type();
  if (type == "Sequence") {
    node.only({"pretokenizers"});
    for (const JsonNode& one : node["pretokenizers"].elements()) {
      add_pre_tokenizer(one, depth + 1, parsed);
    }
    return;
  }
  if (parsed.byte_level) {
    if (type != "Split" && type != "Digits") {
      node.refuse(fmt::format("the pre-tokenizer {} after ByteLevel isn't supported.", type));
    }
    const bool spells = std::any_of(parsed.steps.begin(), parsed.steps.end(), [](const auto& step) {
      return std::holds_alternative<SpellBytesStep>(step);
    });
    if (!spells) parsed.steps.emplace_back(SpellBytesStep{});
  }
  if (type == "ByteLevel") {
    node.only({"add_prefix_space", "trim_offsets", "use_regex"});
    if (!node.has("add_prefix_space")) node.refuse("\"add_prefix_space\" is missing.");
    if (node.flag("add_prefix_space", true)) parsed.steps.emplace_back(PrefixSpaceStep{});
    if (node.flag("use_regex", true)) parsed.steps.emplace_back(SplitStep{regex(kGpt2, node)});
    parsed.byte_level = true;
  } else if (type == "Split") {
    node.only({"pattern", "behavior", "invert"});
    parsed.steps.emplace_back(SplitStep{parse_split_pattern(node["pattern"]),
                                        parse_behavior(node["behavior"]),
                                        node.flag("invert", false)});
  } else if (type == "Digits") {
    node.only({"individual_digits"});
    const bool individual = node.flag("individual_digits", false);
    parsed.steps.emplace_back(SplitStep{regex(individual ? R"(\p{N})" : R"(\p{N}+)", node)});
  } else if (type == "Metaspace") {
    parsed.steps.emplace_back(parse_metaspace(node));
  } else {
    refuse_type(node, "pre-tokenizer");
  }
}

std::size_t parse_count(const JsonNode& node) {
  if (node.number() > 1'000'000) node.refuse("expected at most 1,000,000.");
  return static_cast<std::size_t>(node.number());
}

void add_decoder(const JsonNode& node, int depth, std::vector<DecoderStep>& steps) {
  check_depth(node, depth);
  check_steps(node, steps.size());
  const std::string type = node.type();
  if (type == "Sequence") {
    node.only({"decoders"});
    for (const JsonNode& one : node["decoders"].elements()) add_decoder(one, depth + 1, steps);
  } else if (type == "ByteLevel") {
    node.only({"add_prefix_space", "trim_offsets", "use_regex"});
    steps.emplace_back(ByteLevelDecoder{});
  } else if (type == "ByteFallback") {
    node.only({});
    steps.emplace_back(ByteFallbackDecoder{});
  } else if (type == "Fuse") {
    node.only({});
    steps.emplace_back(FuseDecoder{});
  } else if (type == "Replace") {
    node.only({"pattern", "content"});
    const JsonNode pattern = node["pattern"];
    if (is_regex(pattern)) pattern.refuse("a Regex in a decoder isn't supported.");
    steps.emplace_back(ReplaceDecoder{text_pattern(pattern), node["content"].text()});
  } else if (type == "Strip") {
    node.only({"content", "start", "stop"});
    steps.emplace_back(StripDecoder{one_character(node["content"]), parse_count(node["start"]),
                                    parse_count(node["stop"])});
  } else if (type == "Metaspace") {
    const MetaspaceStep step = parse_metaspace(node);
    steps.emplace_back(
        MetaspaceDecoder{step.replacement, step.prepend != MetaspaceStep::Prepend::kNever});
  } else {
    refuse_type(node, "decoder");
  }
}

std::int32_t parse_id(const JsonNode& node) {
  if (node.number() > std::numeric_limits<std::int32_t>::max()) node.refuse("isn't a token id.");
  return static_cast<std::int32_t>(node.number());
}

/// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...],
///  "special_tokens": {"<s>": {"ids": [1]}, ...}}
std::vector<std::int32_t> parse_template(const JsonNode& node) {
  std::vector<std::int32_t> before;
  const JsonNode tokens = node["special_tokens"];
  for (const JsonNode& piece : node["single"].elements()) {
    if (piece.has("Sequence")) return before;
    const std::string name = piece["SpecialToken"]["id"].text();
    for (const JsonNode& id : tokens[name]["ids"].elements()) {
      before.push_back(parse_id(id));
      if (before.size() > kMaxBefore) {
        node.refuse(fmt::format("puts more than {} tokens before a document.", kMaxBefore));
      }
    }
  }
  node["single"].refuse("has no sequence.");
}

void add_post_processor(const JsonNode& node, int depth, TokensBefore& before) {
  check_depth(node, depth);
  const std::string type = node.type();
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const JsonNode& one : node["processors"].elements()) {
      add_post_processor(one, depth + 1, before);
    }
    return;
  }
  if (before) node.refuse("a second post-processor that adds tokens isn't supported.");
  if (type == "TemplateProcessing") {
    before = parse_template(node);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const std::vector<JsonNode> token_and_id = node["cls"].elements();
    if (token_and_id.size() != 2) node["cls"].refuse("expected a token and its id.");
    before.emplace({parse_id(token_and_id[1])});
  } else {
    refuse_type(node, "post-processor");
  }
}

}  // namespace

std::vector<NormalizerStep> parse_normalizer(const JsonNode& node) {
  std::vector<NormalizerStep> steps;
  add_normalizer(node, 0, steps);
  return steps;
}

ParsedPreTokenizer parse_pre_tokenizer(const JsonNode& node) {
  ParsedPreTokenizer parsed;
  add_pre_tokenizer(node, 0, parsed);
  return parsed;
}

std::vector<DecoderStep> parse_decoder(const JsonNode& node) {
  std::vector<DecoderStep> steps;
  add_decoder(node, 0, steps);
  return steps;
}

TokensBefore parse_post_processor(const JsonNode& node) {
  TokensBefore before;
  add_post_processor(node, 0, before);
  return before;
}

}  // namespace sherd::tokenizer
