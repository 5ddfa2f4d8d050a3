#include "engine/data/dataset_summary.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace sherd::data {
namespace {

std::string with_commas(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (auto place = std::ssize(digits) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return digits;
}

std::string in_whole_sequences(const Dataset& dataset) {
  if (dataset.separate_documents()) return "";
  std::int64_t tokens = 0;
  for (const FilePart& part : dataset.parts(Split::kValidation)) {
    tokens += (part.count - 1) / dataset.seq_length() * dataset.seq_length();
  }
  return tokens == 0 ? "" : fmt::format(" ({} in whole sequences)", with_commas(tokens));
}

std::string texts_text(std::int64_t count, bool are_files) {
  if (are_files) return files_text(static_cast<std::size_t>(count));
  return fmt::format("{} document{}", with_commas(count), count == 1 ? "" : "s");
}

std::string joined_and_skipped(const Dataset& dataset, Split split, bool are_files) {
  const Dataset::Counts& counts = dataset.counts(split);
  const char* label = split == Split::kTrain ? "training" : "validation";
  std::string text;
  if (counts.joined_files > 0) {
    text +=
        fmt::format("\n{}: joined the text of {}, each shorter than a sequence, {} tokens", label,
                    texts_text(counts.joined_files, are_files), with_commas(counts.joined_tokens));
  }
  if (counts.skipped_files > 0) {
    text +=
        fmt::format("\n{}: skipped the text of {}, together shorter than a sequence, {} token{}",
                    label, texts_text(counts.skipped_files, are_files),
                    with_commas(counts.skipped_tokens), counts.skipped_tokens == 1 ? "" : "s");
  }
  return text;
}

using ReasonAndRows = std::pair<std::string, ChatCounts::Dropped>;

std::vector<ReasonAndRows> most_frequent_first(const ChatCounts& counts) {
  std::vector<ReasonAndRows> reasons(counts.dropped.begin(), counts.dropped.end());
  std::ranges::stable_sort(reasons, [](const ReasonAndRows& a, const ReasonAndRows& b) {
    return a.second.rows > b.second.rows;
  });
  return reasons;
}

// "id (12), source (10)"
std::string fields_text(const std::map<std::string, std::int64_t>& fields) {
  constexpr std::size_t kMost = 12;
  std::string text;
  std::size_t listed = 0;
  for (const auto& [name, rows] : fields) {
    if (listed == kMost) return text + fmt::format(" and {} more", fields.size() - kMost);
    text +=
        fmt::format("{}{} ({})", listed++ == 0 ? "" : ", ", name.substr(0, 64), with_commas(rows));
  }
  return text;
}

// Nothing for data that aren't conversations.
std::string of_conversations(const ChatCounts& counts) {
  std::string text;
  const auto say = [&](std::int64_t count, std::string_view what) {
    if (count > 0) text += fmt::format("\n{} {}", with_commas(count), what);
  };
  say(counts.conversations, counts.conversations == 1 ? "conversation" : "conversations");
  for (const auto& [reason, dropped] : most_frequent_first(counts)) {
    say(dropped.rows, fmt::format("dropped: {} (first {})", reason, dropped.first));
  }
  say(counts.cut, "cut: longer than a sequence");
  say(counts.rewritten,
      "trained on their last answer alone: the template rewrites what came before");
  if (!counts.unread.empty()) {
    text += "\nfields that aren't read, with their rows: " + fields_text(counts.unread);
  }
  if (!counts.unshown.empty()) {
    text += "\nfields that the chat template doesn't show, with their rows: " +
            fields_text(counts.unshown);
  }
  return text;
}

std::string passed_over_text(const PassedOver& passed_over) {
  std::string text;
  if (passed_over.num_empty + passed_over.num_binary > 0) {
    text = fmt::format("{} empty and {} binary ones skipped", passed_over.num_empty,
                       passed_over.num_binary);
  }
  if (passed_over.num_of_runs > 0) {
    text += fmt::format("{}{} of training runs left out", text.empty() ? "" : ", ",
                        passed_over.num_of_runs);
  }
  return text.empty() ? "" : " (" + text + ")";
}

}  // namespace

std::string files_text(std::size_t count) {
  return fmt::format("{} file{}", count, count == 1 ? "" : "s");
}

std::string left_out_text(const ChatCounts& counts) {
  std::string text;
  for (const auto& [reason, dropped] : most_frequent_first(counts)) {
    text += fmt::format("{}{} {} (first {})", text.empty() ? "" : "; ", with_commas(dropped.rows),
                        reason, dropped.first);
  }
  return text;
}

std::string summary_of(const Dataset& dataset, const SummarisedFiles& files) {
  const bool are_files = files.num_texts == files.num_files;
  const std::string of_texts =
      are_files ? "" : " of " + texts_text(static_cast<std::int64_t>(files.num_texts), are_files);
  std::string text = fmt::format(
      "{}{}{}, {} tokens train, {} tokens validation{}", files_text(files.num_files), of_texts,
      passed_over_text(files.passed_over), with_commas(dataset.num_tokens(Split::kTrain)),
      with_commas(dataset.num_tokens(Split::kValidation)), in_whole_sequences(dataset));
  for (const Split split : {Split::kTrain, Split::kValidation}) {
    text += joined_and_skipped(dataset, split, are_files);
  }
  if (const std::int64_t count = files.passed_over.num_null; count > 0) {
    text += fmt::format("\nskipped {} whose text is null", texts_text(count, false));
  }
  return text + of_conversations(dataset.chat_counts());
}

}  // namespace sherd::data
