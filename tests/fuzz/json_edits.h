/// Edits of a JSON document, spelt by an input's bytes: a mutated byte is another small lie in a
/// document that stays JSON, where flipping the document's own bytes would mostly break its syntax.
#pragma once

#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {

using Json = nlohmann::ordered_json;

class JsonEdits {
 public:
  JsonEdits(Json& document, Bytes& bytes) : document_(document), bytes_(bytes) {}

  /// At most `most`, fewer if the bytes are used up.
  void apply(int most) {
    for (int i = 0; i < most && !bytes_.empty(); ++i) edit(any_node());
  }

 private:
  // A walk from the top: a vocabulary's thousand leaves don't hide the few keys next to it.
  Json& any_node() {
    Json* node = &document_;
    while (node->is_structured() && !node->empty()) {
      auto child = node->begin();
      std::advance(child, bytes_.below(node->size()));
      node = &*child;
      if (bytes_.byte() % 4 == 0) break;
    }
    return *node;
  }

  const Json& edge_value() {
    static const std::vector<Json> kValues = {0,
                                              -1,
                                              1,
                                              2,
                                              255,
                                              65'536,
                                              1LL << 31,
                                              1LL << 32,
                                              1LL << 53,
                                              1LL << 62,
                                              std::numeric_limits<std::int64_t>::max(),
                                              std::numeric_limits<std::int64_t>::min(),
                                              std::numeric_limits<std::uint64_t>::max(),
                                              0.5,
                                              -0.5,
                                              1e300,
                                              5e-324,
                                              true,
                                              nullptr,
                                              "",
                                              "x",
                                              std::string(1, '\0'),
                                              "../../etc",
                                              std::string(300, 'a'),
                                              Json::array(),
                                              Json::object(),
                                              Json::array({Json::array()})};
    return kValues[bytes_.below(kValues.size())];
  }

  void edit(Json& node) {
    switch (bytes_.byte() % 9) {
      case 0:
        node = edge_value();
        break;
      case 1:
        add(node, 1);
        break;
      case 2:
        add(node, -1);
        break;
      case 3:
        node = Json(any_node());
        break;  // a copy first: one may hold the other
      case 4:
        exchange(node);
        break;
      case 5:
        erase_child(node);
        break;
      case 6:
        repeat_child(node);
        break;
      case 7:
        replace_number(node);
        break;
      default:
        replace_letter(node);
    }
  }

  static void add(Json& node, int summand) {
    if (node.is_number_integer()) {
      node = static_cast<std::int64_t>(node.get<std::uint64_t>() + static_cast<unsigned>(summand));
    } else if (node.is_number_float()) {
      node = node.get<double>() + summand;
    }
  }
  void exchange(Json& node) {
    Json& other = any_node();
    if (!node.is_structured() && !other.is_structured()) std::swap(node, other);
  }
  void erase_child(Json& node) {
    if (!node.is_structured() || node.empty()) return;
    auto child = node.begin();
    std::advance(child, bytes_.below(node.size()));
    node.erase(child);
  }
  void repeat_child(Json& node) {
    if (node.is_array() && !node.empty()) node.push_back(Json(node[bytes_.below(node.size())]));
    if (node.is_object()) node["another key"] = edge_value();
  }
  // A run of digits in a text, such as a recipe's.
  void replace_number(Json& node) {
    if (!node.is_string()) return;
    std::string text = node;
    std::vector<std::pair<std::size_t, std::size_t>> numbers;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool digit = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
      const bool goes_on = !numbers.empty() && numbers.back().second == i;
      if (digit && goes_on) ++numbers.back().second;
      if (digit && !goes_on) numbers.emplace_back(i, i + 1);
    }
    if (numbers.empty()) return;
    const auto [begin, end] = numbers[bytes_.below(numbers.size())];
    const Json& value = edge_value();
    node = text.replace(begin, end - begin,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
  void replace_letter(Json& node) {
    if (!node.is_string() || node.get_ref<std::string&>().empty()) return;
    std::string& text = node.get_ref<std::string&>();
    text[bytes_.below(text.size())] = static_cast<char>(bytes_.byte() & 0x7f);
  }

  Json& document_;
  Bytes& bytes_;
};

}  // namespace sherd::fuzz
