#include "engine/data/task.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_bounds.h"
#include "engine/data/files/text_stream.h"

namespace sherd::data {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kVersion = 1;
constexpr const char* kVersionKey = "sherd_task";

Json object_of(std::string_view line, const std::string& where) {
  check_json_bounds(line, where);
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) throw DataError("{}: isn't a JSON object.", where);
  return json;
}

std::int64_t whole_of(const Json& json, const char* key, std::int64_t none) {
  const auto found = json.find(key);
  const bool is_whole = found != json.end() && found->is_number_unsigned() &&
                        found->get<std::uint64_t>() < std::uint64_t{1} << 53;
  return is_whole ? found->get<std::int64_t>() : none;
}

const Json& list_of(const Json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) {
    throw DataError(
        R"({}: "{}" isn't a list; a question has "context", "choices", "bytes" and "answer".)",
        where, key);
  }
  return *found;
}

std::vector<std::int32_t> ids_of(const Json& list, const std::string& what,
                                 std::int64_t vocab_size) {
  if (!list.is_array() || list.empty()) throw DataError("{} isn't a list of token ids.", what);
  std::vector<std::int32_t> ids;
  for (const Json& id : list) {
    const bool is_id =
        id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(vocab_size);
    if (!is_id) {
      throw DataError("{} has {}, which isn't a token id from 0 to {}.", what, id.dump(),
                      vocab_size - 1);
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

// The first of the highest; none if none is a number.
std::optional<std::size_t> highest(std::span<const double> scores) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i]) || (best && scores[i] <= scores[*best])) continue;
    best = i;
  }
  return best;
}

std::string read_all(const std::string& path) {
  const std::unique_ptr<TextStream> stream = open_text_stream(path);
  std::string text;
  std::vector<char> bytes(std::size_t{1} << 16);
  while (const std::size_t count = stream->read(bytes.data(), bytes.size())) {
    text.append(bytes.data(), count);
  }
  return text;
}

void check_header(std::string_view line, const std::string& path, const TaskLimits& limits) {
  const Json header = Json::accept(line) ? Json::parse(line) : Json();
  const std::int64_t version = header.is_object() ? whole_of(header, kVersionKey, -1) : -1;
  const std::int64_t vocab_size = header.is_object() ? whole_of(header, "vocab_size", -1) : -1;
  if (version < 0 || vocab_size < 1) {
    throw DataError(
        R"({}: isn't a file of questions: its first line isn't {{"{}": {}, "vocab_size": N}}. recipes/lm_eval/task_file.py writes them.)",
        path, kVersionKey, kVersion);
  }
  if (version != kVersion) {
    throw DataError("{}: is a file of questions of version {}, and this program knows {}.", path,
                    version, kVersion);
  }
  if (limits.tokenizer_size && vocab_size != *limits.tokenizer_size) {
    throw DataError(
        "{}: a tokenizer of {} ids wrote it, and the run's has {}. Write it again with the run's "
        "tokenizer.",
        path, vocab_size, *limits.tokenizer_size);
  }
}

void require_fits(const Question& question, const std::string& where, std::int64_t seq_length) {
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    if (question.num_inputs(i) <= seq_length) continue;
    throw DataError(
        "{}: context and choice {} have {} tokens, and sequences of {} have room for {}. Leave "
        "the question out, or raise training.seq_length.",
        where, i, question.num_inputs(i) + 1, seq_length, seq_length + 1);
  }
}

}  // namespace

Question question_of(std::string_view line, const std::string& where, std::int64_t vocab_size) {
  const Json json = object_of(line, where);
  Question question;
  question.context = ids_of(list_of(json, "context", where), where + ": \"context\"", vocab_size);
  const Json& choices = list_of(json, "choices", where);
  const Json& bytes = list_of(json, "bytes", where);
  if (choices.size() < 2 || bytes.size() != choices.size()) {
    throw DataError("{}: has {} choices and bytes of {}; expected two or more, and bytes of each.",
                    where, choices.size(), bytes.size());
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const bool is_count = bytes[i].is_number_unsigned() && bytes[i].get<std::uint64_t>() > 0 &&
                          bytes[i].get<std::uint64_t>() < std::uint64_t{1} << 53;
    if (!is_count) {
      throw DataError("{}: \"bytes\" has {}, which isn't the length of a text.", where,
                      bytes[i].dump());
    }
    question.choices.push_back(
        {ids_of(choices[i], fmt::format("{}: choice {}", where, i), vocab_size),
         bytes[i].get<std::int64_t>()});
  }
  const std::int64_t answer = whole_of(json, "answer", -1);
  if (answer < 0 || answer >= std::ssize(question.choices)) {
    throw DataError("{}: \"answer\" isn't a choice from 0 to {}.", where,
                    question.choices.size() - 1);
  }
  question.answer = static_cast<std::size_t>(answer);
  return question;
}

Verdict verdict_of(const Question& question, std::span<const double> scores) {
  SHERD_CHECK(scores.size() == question.choices.size(), "{} scores of {} choices", scores.size(),
              question.choices.size());
  std::vector<double> by_bytes;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    by_bytes.push_back(scores[i] / static_cast<double>(question.choices[i].bytes));
  }
  return {highest(scores) == question.answer, highest(by_bytes) == question.answer};
}

std::int64_t Task::num_choices() const {
  std::int64_t count = 0;
  for (const Question& question : questions) count += std::ssize(question.choices);
  return count;
}

std::int64_t Task::most_inputs() const {
  std::int64_t most = 0;
  for (const Question& question : questions) {
    for (std::size_t i = 0; i < question.choices.size(); ++i) {
      most = std::max(most, question.num_inputs(i));
    }
  }
  return most;
}

Task read_task(const std::string& name, const std::string& path, const TaskLimits& limits) {
  const std::string text = read_all(path);
  Task task{.name = name, .path = path, .questions = {}};
  std::int64_t number = 0;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (++number == 1) {
      check_header(line, path, limits);
    } else if (line.find_first_not_of(" \t\r") != line.npos) {
      const std::string where = fmt::format("{}:{}", path, number);
      task.questions.push_back(question_of(line, where, limits.vocab_size));
      require_fits(task.questions.back(), where, limits.seq_length);
    }
  }
  if (number == 0) check_header("", path, limits);
  if (task.questions.empty()) throw DataError("{}: has no questions.", path);
  return task;
}

}  // namespace sherd::data
