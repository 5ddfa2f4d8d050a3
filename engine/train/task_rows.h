/// The rows in which the choices of a task are scored.
///
///   row      context, choice                     one choice, and padding
///            context, choice, context, choice    with separate documents: as many as fit, in order
///   target   only the tokens of a choice have one
///
/// A choice's number is its index in the list of all choices of all questions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/batch_rows.h"
#include "engine/data/task.h"

namespace sherd::engine {

class TaskRows {
 public:
  /// Rows of `seq_length` tokens, at least Task::most_inputs(). Keeps a reference to `task`.
  TaskRows(const data::Task& task, std::int64_t seq_length, bool shared_rows);

  std::int64_t count() const { return std::ssize(firsts_) - 1; }
  std::int64_t seq_length() const { return seq_length_; }
  /// The choices of a row are [first_choice(row), first_choice(row + 1)).
  std::int64_t first_choice(std::int64_t row) const {
    return firsts_[static_cast<std::size_t>(row)];
  }

  /// Writes the next row.
  void write(std::int64_t row, data::BatchRows& rows) const;
  /// [seq_length] Of each position, the choice that its target is of; -1: none.
  std::vector<std::int64_t> choices_of_targets(std::int64_t row) const;

 private:
  struct Place {
    const data::Question* question;
    std::size_t choice;
    std::int64_t num_inputs() const { return question->num_inputs(choice); }
  };
  const Place& place(std::int64_t choice) const {
    return places_[static_cast<std::size_t>(choice)];
  }

  std::int64_t seq_length_;
  std::vector<Place> places_;         // of all choices
  std::vector<std::int64_t> firsts_;  // choices of the rows; one more at the end
};

}  // namespace sherd::engine
