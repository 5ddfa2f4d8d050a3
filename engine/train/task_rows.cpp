#include "engine/train/task_rows.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::engine {

TaskRows::TaskRows(const data::Task& task, std::int64_t seq_length, bool shared_rows)
    : seq_length_(seq_length) {
  SHERD_CHECK(task.most_inputs() <= seq_length, "{} tokens in rows of {}", task.most_inputs(),
              seq_length);
  std::int64_t room = 0;  // in the last row
  for (const data::Question& question : task.questions) {
    for (std::size_t choice = 0; choice < question.choices.size(); ++choice) {
      const std::int64_t inputs = question.num_inputs(choice);
      if (!shared_rows || inputs > room) {
        firsts_.push_back(std::ssize(places_));
        room = seq_length;
      }
      places_.push_back({&question, choice});
      room -= inputs;
    }
  }
  firsts_.push_back(std::ssize(places_));
}

void TaskRows::write(std::int64_t row, data::BatchRows& rows) const {
  std::int64_t token = rows.begin_row();
  for (std::int64_t i = first_choice(row); i < first_choice(row + 1); ++i) {
    const std::vector<std::int32_t>& context = place(i).question->context;
    const std::vector<std::int32_t>& choice = place(i).question->choices[place(i).choice].tokens;
    auto* inputs = rows.batch().inputs.as<std::int32_t>() + token;
    std::copy(choice.begin(), choice.end() - 1, std::ranges::copy(context, inputs).out);
    auto* targets = rows.batch().targets.as<std::int32_t>() + token;
    std::ranges::copy(choice, targets + context.size() - 1);
    rows.add_document(token, place(i).num_inputs());
    token += place(i).num_inputs();
  }
}

std::vector<std::int64_t> TaskRows::choices_of_targets(std::int64_t row) const {
  std::vector<std::int64_t> choices(static_cast<std::size_t>(seq_length_), -1);
  auto begin = choices.begin();
  for (std::int64_t i = first_choice(row); i < first_choice(row + 1); ++i) {
    const auto end = begin + place(i).num_inputs();
    std::fill(begin + std::ssize(place(i).question->context) - 1, end, i);
    begin = end;
  }
  return choices;
}

}  // namespace sherd::engine
