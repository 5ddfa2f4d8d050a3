#include "engine/data/template/budget.h"

#include <algorithm>

#include "engine/data/template/value.h"

namespace sherd::templates {

Budget::~Budget() {
  // One after the other, while all of them are there: what an emptied one held goes no deeper than
  // a value may.
  for (const std::shared_ptr<Dict>& name_space : namespaces_) {
    const auto items = std::exchange(name_space->items, {});
  }
  namespaces_.clear();
  current_ = before_;
}

Used Budget::used() const {
  return {limits_.steps - std::max<std::int64_t>(left_, 0) / kParts, most_bytes_, most_depth_};
}

void Budget::out_of_steps() const {
  throw_problem("the template takes more than {} steps", limits_.steps);
}

void Budget::out_of_bytes() const {
  throw_problem("the template's values take more than {} bytes", limits_.bytes);
}

void Budget::out_of_depth() const {
  throw_problem("calls, blocks, expressions or values are nested too deep: more than {} levels",
                limits_.depth);
}

void Held::set(std::size_t bytes) {
  if (!budget_) budget_ = Budget::current();
  if (!budget_) return;
  const std::int64_t now = budget_->bytes_ - bytes_ + static_cast<std::int64_t>(bytes);
  if (now > budget_->limits_.bytes) budget_->out_of_bytes();
  budget_->bytes_ = now;
  budget_->most_bytes_ = std::max(budget_->most_bytes_, now);
  bytes_ = static_cast<std::int64_t>(bytes);
}

std::string for_message(const std::string& text) {
  constexpr std::size_t kMostShown = 400;
  std::string shown = text.substr(0, kMostShown);
  while (shown.size() < text.size() && !shown.empty() &&
         (static_cast<unsigned char>(text[shown.size()]) & 0xc0) == 0x80) {
    shown.pop_back();  // not in the middle of a character
  }
  std::replace_if(
      shown.begin(), shown.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return shown.size() < text.size() ? shown + "..." : shown;
}

}  // namespace sherd::templates
