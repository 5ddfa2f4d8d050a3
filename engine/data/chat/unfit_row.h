/// A row of chat data that can't be trained on, and why.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace sherd::data {

/// `reason` is one of the constants below; rows are counted by it. what() names the place in the
/// row, but not the row's file and line.
class UnfitRow : public DataError {
 public:
  template <class... Args>
  UnfitRow(std::string_view reason, fmt::format_string<Args...> format, Args&&... args)
      : DataError("{}", fmt::format(format, std::forward<Args>(args)...)), reason_(reason) {}
  std::string_view reason() const { return reason_; }

 private:
  std::string_view reason_;  ///< a literal
};

/// They complete "3 rows dropped: ".
namespace unfit {
inline constexpr std::string_view kNotJson = "not JSON";
inline constexpr std::string_view kNoForm = "none of the known forms";
inline constexpr std::string_view kWrongType = "a field that isn't of its form's type";
inline constexpr std::string_view kNoContent = "a message without content";
inline constexpr std::string_view kUnknownRole = "an unknown role";
inline constexpr std::string_view kRoleOrder = "messages in an order that no chat has";
inline constexpr std::string_view kMedia = "images, sound or video";
inline constexpr std::string_view kPreference = "preferences between answers";
inline constexpr std::string_view kEqualSides = "two answers that are equal";
inline constexpr std::string_view kPromptsDiffer = "prompts that the template shows differently";
inline constexpr std::string_view kUnknownMask = "a weight or mask that isn't known";
inline constexpr std::string_view kToolCalls = "tool calls that the template doesn't show";
inline constexpr std::string_view kTemplate = "refused by the chat template";
inline constexpr std::string_view kOrder = "answers that the template shows in another order";
inline constexpr std::string_view kLong = "longer than a sequence";
inline constexpr std::string_view kNoAnswer = "no answer to train on";
inline constexpr std::string_view kWeightless = "answers that all have weight 0";
inline constexpr std::string_view kCutAway = "nothing to train on within a sequence";
}  // namespace unfit

}  // namespace sherd::data
