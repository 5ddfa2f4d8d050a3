/// Parses the lists of steps in a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/data/tokenizer/decoder.h"
#include "engine/data/tokenizer/json_node.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/pre_tokenizer.h"

namespace sherd::tokenizer {

std::vector<NormalizerStep> parse_normalizer(const JsonNode& node);

struct ParsedPreTokenizer {
  std::vector<PreTokenizerStep> steps;
  bool byte_level = false;
};
ParsedPreTokenizer parse_pre_tokenizer(const JsonNode& node);

std::vector<DecoderStep> parse_decoder(const JsonNode& node);

/// The ids that a post-processor puts before a document; none if its type adds no tokens. Tokens
/// that it puts after a document aren't used.
using TokensBefore = std::optional<std::vector<std::int32_t>>;
TokensBefore parse_post_processor(const JsonNode& node);

}  // namespace sherd::tokenizer
