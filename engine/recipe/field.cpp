// What a row of the field table says of its values, in words.
#include <fmt/format.h>

#include <cmath>

#include "engine/recipe/fields.h"
#include "engine/recipe/items.h"
#include "engine/recipe/suggest.h"

namespace sherd::engine {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

}  // namespace

bool Range::holds(double value) const {
  if (!as_float || value == 0.0) return contains(value);
  if (std::abs(value) > std::numeric_limits<float>::max()) return false;
  const auto rounded = static_cast<float>(value);
  // Some units treat subnormals as zero.
  const bool is_zero = std::abs(rounded) < std::numeric_limits<float>::min();
  return !is_zero && contains(value) && contains(rounded);
}

std::string Range::text() const {
  if (std::isinf(min)) return "";
  if (std::isinf(max)) return fmt::format("{} {}", above_min ? "above" : "at least", min);
  if (above_min) {
    return fmt::format("above {} and {} {}", min, below_max ? "below" : "at most", max);
  }
  return fmt::format("from {} to {}{}", min, below_max ? "below " : "", max);
}

std::string Field::type() const {
  return std::visit(
      Overloaded{
          [](Member<std::int64_t>) -> std::string { return "whole number"; },
          [](Member<std::uint64_t>) -> std::string { return "whole number below 2^64"; },
          [](Member<double>) -> std::string { return "number"; },
          [](Member<bool>) -> std::string { return "true or false"; },
          [](Member<std::string>) -> std::string { return "text"; },
          [this](ChoiceMember) { return joined(choices, " | ", " | "); },
          [](Member<std::array<double, 2>>) -> std::string { return "[number, number]"; },
          [](Member<std::vector<double>>) -> std::string { return "list of numbers"; },
          [](Member<std::vector<std::string>>) -> std::string { return "list of texts"; },
          [](Member<std::optional<StepRange>>) -> std::string { return "[first, last] or []"; },
          [](auto) -> std::string { return "list of blocks"; },
      },
      slot);
}

std::string_view Field::resume_text() const {
  switch (on_resume) {
    case OnResume::kMustMatch:
      return "must match";
    case OnResume::kMayChange:
      return "may change";
    case OnResume::kFree:
      break;
  }
  return "free";
}

std::string Field::expected() const {
  if (!demand.empty()) return std::string(demand);
  if (std::holds_alternative<ChoiceMember>(slot)) {
    return "expected " + joined(choices, ", ", " or ");
  }
  if (std::holds_alternative<Member<bool>>(slot)) return "expected true or false";
  if (std::holds_alternative<Member<std::string>>(slot)) return "expected text";
  if (std::holds_alternative<Member<std::vector<double>>>(slot)) {
    return fmt::format("expected a list of numbers {}, such as [1.0, 1.5]", range.text());
  }
  if (std::holds_alternative<Member<std::vector<std::string>>>(slot)) {
    return "expected a list of texts, such as [\"a\", \"b\"]";
  }
  if (type() == "list of blocks") {
    return fmt::format("expected a list of blocks, such as [{{{}: ...}}, {{{}: ...}}]",
                       item_rows(*this)[0].key, item_rows(*this)[0].key);
  }
  const std::string limits = range.text();
  const char* of = limits.starts_with("at") ? " of " : limits.empty() ? "" : " ";
  if (std::holds_alternative<Member<std::array<double, 2>>>(slot)) {
    return fmt::format("expected a list of two numbers{}{}", of, limits);
  }
  if (std::holds_alternative<Member<std::optional<StepRange>>>(slot)) {
    return "expected [first, last] with 1 <= first <= last, or []";
  }
  return fmt::format("expected a {}{}{}", type(), of, limits);
}

}  // namespace sherd::engine
