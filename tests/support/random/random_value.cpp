#include "tests/support/random/random_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sherd::testing {
namespace {

using engine::Field;
using engine::Member;
using engine::Range;
using engine::Recipe;

std::string legal_whole(const Range& range, Random& random, double reach) {
  const double low = std::isinf(range.min) ? 0 : range.min;
  const double high = std::min(range.max, low + reach);
  return fmt::format("{}", random.whole(static_cast<std::int64_t>(low) + range.above_min,
                                        static_cast<std::int64_t>(high) - range.below_max));
}

std::string legal_number(const Range& range, Random& random, double reach) {
  const double low = std::isinf(range.min) ? 0 : range.min;
  const double high = std::min(range.max, low + reach);
  if (random.chance(0.1) && range.holds(low)) return fmt::format("{}", low);
  if (random.chance(0.1) && range.holds(high)) return fmt::format("{}", high);
  return fmt::format("{}", random.number(low + 1e-3 * (high - low), high));
}

std::string illegal_number(const Range& range, Random& random) {
  std::vector<std::string> values = {"many", "[1]", "[]",    ".nan", ".inf", "1e400", "0x10", "1,5",
                                     "{}",   "",    "\"1\"", "true", "--1",  "1e",    "null", "~"};
  if (!std::isinf(range.min)) {
    values.push_back(fmt::format("{}", range.min - 1));
    values.push_back("-1e300");
    if (range.above_min) values.push_back(fmt::format("{}", range.min));
  }
  if (!std::isinf(range.max)) {
    values.push_back(fmt::format("{}", range.max * 2 + 1));
    values.push_back("1e300");
    if (range.below_max) values.push_back(fmt::format("{}", range.max));
  }
  return random.one_of(values);
}

struct Legal {
  const Field& field;
  Random& random;
  double reach;

  std::string operator()(Member<std::int64_t>) { return legal_whole(field.range, random, reach); }
  std::string operator()(Member<std::uint64_t>) {
    return random.one_of({"0", "1", "77", "9223372036854775808", "18446744073709551615"});
  }
  std::string operator()(Member<double>) { return legal_number(field.range, random, reach); }
  std::string operator()(Member<bool>) { return random.one_of({"true", "false"}); }
  std::string operator()(Member<std::string>) { return "\"\""; }
  std::string operator()(engine::ChoiceMember) { return std::string(random.one_of(field.choices)); }
  std::string operator()(Member<std::array<double, 2>>) {
    return fmt::format("[{}, {}]", legal_number(field.range, random, reach),
                       legal_number(field.range, random, reach));
  }
  std::string operator()(Member<std::vector<double>>) {
    return fmt::format("[{}, {}]", legal_number(field.range, random, reach),
                       legal_number(field.range, random, reach));
  }
  std::string operator()(Member<std::vector<std::string>>) {
    return random.one_of({"[]", "[\"*\"]", "[\"embedding.*\", \"*norm*\"]", "[\"[\", \"\"]"});
  }
  std::string operator()(Member<std::optional<engine::StepRange>>) {
    return random.one_of({"[]", "[0, 0]", "[1, 2]"});
  }
  template <class Item>
  std::string operator()(Member<std::vector<Item>>) {
    return "[]";
  }
};

struct Illegal {
  const Field& field;
  Random& random;

  std::string operator()(Member<std::int64_t>) {
    return random.chance(0.2) ? "1.5" : illegal_number(field.range, random);
  }
  std::string operator()(Member<std::uint64_t>) {
    return random.one_of({"-1", "1.5", "18446744073709551616", "many", "[1]", "", "1e300"});
  }
  std::string operator()(Member<double>) { return illegal_number(field.range, random); }
  std::string operator()(Member<bool>) {
    return random.one_of({"yes", "True", "1", "\"true\"", "[true]", "", "off", "{}"});
  }
  std::string operator()(Member<std::string>) {
    return random.one_of({"[a, b]", "{a: b}", "", "[]", "\"a\\0b\""});
  }
  std::string operator()(engine::ChoiceMember) {
    return random.one_of({"nothing-like-it", "3", "[f32]", "", "\"\"", "{}", "F 32"});
  }
  std::string operator()(Member<std::array<double, 2>>) {
    return random.one_of({"[0.9]", "[0.9, 2.0]", "0.9", "[a, b]", "[0.1, 0.1, 0.1]", "[]", "",
                          "[[0.9], 0.9]", "[-0.1, 0.5]", "[.nan, 0.5]"});
  }
  std::string operator()(Member<std::vector<double>>) {
    return random.one_of({"1.5", "[a]", "{a: b}", "", "[[1]]", "[.nan]", "[1e400]"});
  }
  std::string operator()(Member<std::vector<std::string>>) {
    return random.one_of({"one", "[[a]]", "{a: b}", "", "[{a: b}]"});
  }
  std::string operator()(Member<std::optional<engine::StepRange>>) {
    return random.one_of(
        {"[3]", "[5, 2]", "[a, b]", "[-1, 2]", "[1, 2, 3]", "4", "", "[1e300, 2]"});
  }
  template <class Item>
  std::string operator()(Member<std::vector<Item>>) {
    return random.one_of({"3", "[3]", "{a: 1}", "[{a: 1}]", "[{[]: 1}]", "[{~: ~}]", "[[{}]]", ""});
  }
};

}  // namespace

std::string legal_value(const Field& field, Random& random, double reach) {
  return std::visit(Legal{field, random, reach}, field.slot);
}

std::string illegal_value(const Field& field, Random& random) {
  return std::visit(Illegal{field, random}, field.slot);
}

}  // namespace sherd::testing
