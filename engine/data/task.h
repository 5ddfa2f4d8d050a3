/// Questions with choices, as token ids: what training.tasks scores during a run. One JSON object
/// per line, in a plain file, .gz or .zst. The first line is the header:
///
///   {"sherd_task": 1, "vocab_size": 50257}
///   {"context": [464, 3139, 318], "choices": [[6342], [3576, 13]], "bytes": [6, 8], "answer": 0}
///
/// `vocab_size` is one more than the largest id of the tokenizer that wrote the file. `answer` is
/// the number of the right choice, from 0. `bytes` has the length of each choice's text.
/// recipes/lm_eval/task_file.py writes such files from the tasks of lm-evaluation-harness.
///
///   score    log-likelihood of a choice: the sum of ln p of its tokens, each after the context
///            and the choice's tokens before it
///   acc      questions whose right choice has the highest score
///   acc_norm questions whose right choice has the highest score / bytes
///
/// Of equal scores the first choice counts, and one that isn't a number never does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::data {

struct Choice {
  std::vector<std::int32_t> tokens;  ///< at least one
  std::int64_t bytes = 1;
};

struct Question {
  std::vector<std::int32_t> context;  ///< at least one token
  std::vector<Choice> choices;        ///< at least two
  std::size_t answer = 0;

  /// Tokens that a model reads to score a choice: the last one is only predicted.
  std::int64_t num_inputs(std::size_t choice) const {
    return std::ssize(context) + std::ssize(choices[choice].tokens) - 1;
  }
};

/// The question in a line. `where` names the line in messages.
/// Errors   DataError: not a question, or ids that aren't below `vocab_size`
Question question_of(std::string_view line, const std::string& where, std::int64_t vocab_size);

/// Which of a question's choices is the likeliest, by score and by score / bytes.
struct Verdict {
  bool right = false, right_by_bytes = false;
};
Verdict verdict_of(const Question& question, std::span<const double> scores);

/// One file of questions.
struct Task {
  std::string name;
  std::string path;
  std::vector<Question> questions;  ///< at least one

  std::int64_t num_choices() const;
  /// Of all choices: most tokens that a model reads.
  std::int64_t most_inputs() const;
};

struct TaskLimits {
  std::int64_t vocab_size = 0;                   ///< of the model: all ids are smaller
  std::optional<std::int64_t> tokenizer_size{};  ///< the header's vocab_size, if it is known
  std::int64_t seq_length = 0;                   ///< most tokens that a model reads
};
/// Errors   DataError, one line with the file: unreadable; without header or questions; of another
///          tokenizer; a bad line, with its number; a question longer than a sequence.
Task read_task(const std::string& name, const std::string& path, const TaskLimits& limits);

}  // namespace sherd::data
