#include "engine/recipe/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <optional>

#include "engine/recipe/fields.h"
#include "engine/recipe/foreign_names.h"

namespace sherd::engine {
namespace {

char plain(char c) {
  return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_near(int distance, std::string_view wrong) {
  return distance <= std::max(1, static_cast<int>(wrong.size()) / 3);
}

std::vector<std::string_view> block_names() {
  std::vector<std::string_view> names;
  for (const Block& block : recipe_blocks()) names.push_back(block.name);
  return names;
}

bool has_word(std::string_view words, std::string_view word) {
  bool found = false;
  for_each_word(words, [&](std::string_view one) { found |= edit_distance(one, word) == 0; });
  return found;
}

const ForeignBlock* foreign_block(std::string_view word) {
  for (const ForeignBlock& block : foreign_blocks()) {
    if (has_word(block.words, word)) return &block;
  }
  return nullptr;
}

/// Our block that the user probably means, or "".
std::string_view meant_block(std::string_view word) {
  if (word.empty()) return {};
  for (const std::string_view name : block_names()) {
    if (edit_distance(name, word) == 0) return name;
  }
  if (const ForeignBlock* foreign = foreign_block(word)) return foreign->block;
  return nearest(word, block_names());
}

// Names that are only meaningful in their own block.
bool is_general(std::string_view name) {
  constexpr std::string_view kGeneral[] = {"name", "type", "mode", "path", "format", "interval"};
  return std::find(std::begin(kGeneral), std::end(kGeneral), name) != std::end(kGeneral);
}

/// The nearest name with at most `most` typos, in `block` ("": in any).
std::string_view near_key(std::string_view name, std::string_view block, int most) {
  std::string_view best;
  int best_distance = most + 1;
  for (const Field& field : recipe_fields()) {
    if (block.empty() ? is_general(field.name()) : field.block() != block) continue;
    const int distance = edit_distance(field.name(), name);
    if (distance < best_distance) best = field.key, best_distance = distance;
  }
  return best;
}

/// The same name in another block, the one whose name is most similar.
std::string_view same_name_elsewhere(std::string_view name, std::string_view block) {
  std::string_view best;
  int best_distance = INT_MAX;
  for (const Field& field : recipe_fields()) {
    if (edit_distance(field.name(), name) != 0) continue;
    if (!block.empty() && is_general(field.name())) continue;
    const int distance = edit_distance(field.block(), block);
    if (distance < best_distance) best = field.key, best_distance = distance;
  }
  return best;
}

/// Another engine's word for a key; `block` restricts it to our keys there ("": any key or none).
const ForeignKey* foreign_key(std::string_view word, std::string_view block) {
  for (const ForeignKey& foreign : foreign_keys()) {
    if (!has_word(foreign.words, word)) continue;
    if (block.empty() || foreign.key.substr(0, foreign.key.find('.')) == block) return &foreign;
  }
  return nullptr;
}

std::string sentence(std::string_view words) {
  std::string text(words);
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

struct Suggestion {
  std::string_view key, why;
};

/// The most reliable suggestion first: a typo in the given block, another engine's word, the same
/// name in another block, a similar name.
Suggestion suggested_key(std::string_view wrong) {
  const std::size_t dot = wrong.rfind('.');
  const std::string_view written = dot == std::string_view::npos ? "" : wrong.substr(0, dot);
  const std::string_view name = dot == std::string_view::npos ? wrong : wrong.substr(dot + 1);
  const std::string_view block = meant_block(written);
  const int slips = std::max(1, static_cast<int>(name.size()) / 5);
  const int likeness = std::max(1, static_cast<int>(name.size()) / 3);

  const auto known = [](const ForeignKey* foreign) -> std::optional<Suggestion> {
    if (foreign) return Suggestion{foreign->key, foreign->why};
    return std::nullopt;
  };
  if (const auto found = known(foreign_key(wrong, ""))) return *found;
  if (!block.empty()) {
    if (const auto found = known(foreign_key(name, block))) return *found;
    if (const auto key = near_key(name, block, slips); !key.empty()) return {key, ""};
  }
  if (const auto key = same_name_elsewhere(name, block); !key.empty()) return {key, ""};
  if (const auto found = known(foreign_key(name, ""))) return *found;
  if (!block.empty()) {
    if (const auto key = near_key(name, block, likeness); !key.empty()) return {key, ""};
  }
  return {near_key(name, "", likeness), ""};
}

}  // namespace

std::string joined(const std::vector<std::string_view>& names, std::string_view between,
                   std::string_view before_last) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? before_last : between;
    out += names[i];
  }
  return out;
}

int edit_distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kLongest = 64;
  if (a.size() > kLongest || b.size() > kLongest) return static_cast<int>(kLongest);
  using Row = std::array<int, kLongest + 1>;
  Row two_ago{}, previous{}, current{};
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = plain(a[i - 1]) == plain(b[j - 1]) ? 0 : 1;
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + replaced});
      const bool swapped = i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
                           plain(a[i - 2]) == plain(b[j - 1]);
      if (swapped) current[j] = std::min(current[j], two_ago[j - 2] + 1);
    }
    two_ago = previous;
    previous = current;
  }
  return previous[b.size()];
}

std::string_view nearest(std::string_view wrong, const std::vector<std::string_view>& names) {
  std::string_view best;
  int best_distance = 1 << 20;
  for (const std::string_view name : names) {
    const int distance = edit_distance(name, wrong);
    if (distance < best_distance && is_near(distance, wrong)) best = name, best_distance = distance;
  }
  return best;
}

std::string_view meant_choice(std::string_view wrong,
                              const std::vector<std::string_view>& choices) {
  for (const ForeignChoice& entry : foreign_choices()) {
    if (!has_word(entry.words, wrong)) continue;
    const auto choice = std::find(choices.begin(), choices.end(), entry.choice);
    if (choice != choices.end()) return *choice;
  }
  return nearest(wrong, choices);
}

std::string unknown_key(std::string_view wrong) {
  if (const std::size_t item = wrong.find('['); item != std::string_view::npos) {
    const std::string_view list = wrong.substr(0, item);
    if (field_index(list) >= 0) {
      return fmt::format("{0} is a list, which is set as a whole: {0}=[...].", list);
    }
  }
  const auto [key, why] = suggested_key(wrong);
  if (!key.empty()) {
    return fmt::format("unknown key \"{}\"; did you mean \"{}\"?{}{}", wrong, key,
                       why.empty() ? "" : " ", sentence(why));
  }
  if (!why.empty()) return fmt::format("\"{}\" isn't supported: {}", wrong, why);
  return fmt::format("unknown key \"{}\"; `sherd recipe --help-fields` lists all keys.", wrong);
}

std::string unknown_block(std::string_view wrong) {
  const ForeignBlock* foreign = foreign_block(wrong);
  if (foreign && foreign->block.empty()) {
    return fmt::format("\"{}\" isn't supported: {}", wrong, foreign->why);
  }
  const std::string_view meant = meant_block(wrong);
  if (meant.empty()) {
    return fmt::format("unknown block \"{}\"; blocks are {}.", wrong,
                       joined(block_names(), ", ", " and "));
  }
  return fmt::format("unknown block \"{}\"; did you mean \"{}\"?", wrong, meant);
}

}  // namespace sherd::engine
