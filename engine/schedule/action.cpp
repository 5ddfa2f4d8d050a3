#include "engine/schedule/action.h"

#include <fmt/core.h>

#include <array>
#include <charconv>

namespace sherd::schedule {
namespace {

struct Word {
  ActionKind kind;
  std::string_view text;
};

// In the order of the kinds.
constexpr std::array kWords = {
    Word{ActionKind::kForward, "F"},
    Word{ActionKind::kBackward, "B"},
    Word{ActionKind::kInputGradient, "I"},
    Word{ActionKind::kWeightGradient, "W"},
    Word{ActionKind::kSendActivations, "SEND_F"},
    Word{ActionKind::kReceiveActivations, "RECV_F"},
    Word{ActionKind::kSendGradients, "SEND_B"},
    Word{ActionKind::kReceiveGradients, "RECV_B"},
    Word{ActionKind::kGather, "GATHER"},
    Word{ActionKind::kRelease, "RELEASE"},
    Word{ActionKind::kReduce, "REDUCE"},
};

constexpr int kMostNumber = (1 << 27) - 1;  // an Action has room for 28 bits

// Takes the digits that `text` begins with; none, or too large a number: nothing.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number > kMostNumber) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// A reduction may name a micro-batch, gather and release name none, all others must.
bool may_name(ActionKind kind, bool micro_batch) {
  if (kind == ActionKind::kReduce) return true;
  return micro_batch != (kind == ActionKind::kGather || kind == ActionKind::kRelease);
}

}  // namespace

std::string text_of(const Action& action) {
  const Word& word = kWords[static_cast<std::size_t>(action.kind)];
  const std::string text = fmt::format("{}{}", action.chunk, word.text);
  return action.micro_batch == kNoMicroBatch ? text : text + std::to_string(action.micro_batch);
}

std::optional<Action> action_from(std::string_view word) {
  const std::optional<int> chunk = take_number(word);
  if (!chunk) return std::nullopt;
  const std::string_view kind = word.substr(0, word.find_first_of("0123456789"));
  word.remove_prefix(kind.size());
  const bool names_micro_batch = !word.empty();
  const std::optional<int> micro_batch = take_number(word);
  if (!word.empty()) return std::nullopt;
  for (const Word& known : kWords) {
    if (known.text != kind || !may_name(known.kind, names_micro_batch)) continue;
    return Action{known.kind, *chunk, micro_batch.value_or(kNoMicroBatch)};
  }
  return std::nullopt;
}

}  // namespace sherd::schedule
