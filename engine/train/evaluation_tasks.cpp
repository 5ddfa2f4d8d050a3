// Evaluation::score: questions with choices.
#include <algorithm>
#include <span>

#include "engine/model/transformer.h"
#include "engine/train/evaluation.h"
#include "engine/train/task_rows.h"

namespace sherd::engine {
namespace {

// On a GPU every length costs plans of its libraries, so lengths are rounded up.
constexpr std::int64_t kLengthStep = 64;

// Of rows that only have to hold the longest choice; `parts`: that ranks cut a row into.
std::int64_t row_length(const data::Task& task, std::int64_t seq_length, std::int64_t parts) {
  const std::int64_t step = kLengthStep * parts;
  return std::min(seq_length, (task.most_inputs() + step - 1) / step * step);
}

/// Shorter passes, until this object is destroyed.
class PassLength {
 public:
  PassLength(model::Transformer& transformer, std::int64_t own_length)
      : transformer_(transformer), planned_(transformer.shape().seq_length) {
    transformer_.resize(transformer_.shape().sequences, own_length);
  }
  ~PassLength() { transformer_.resize(transformer_.shape().sequences, planned_); }
  PassLength(const PassLength&) = delete;
  PassLength& operator=(const PassLength&) = delete;

 private:
  model::Transformer& transformer_;
  std::int64_t planned_;
};

EvaluationResult::Task counted(const data::Task& task, const std::vector<ExactSum>& losses) {
  EvaluationResult::Task result{.name = task.name};
  for (const ExactSum& loss : losses) result.scores.push_back(-loss.value());
  std::span<const double> left = result.scores;
  for (const data::Question& question : task.questions) {
    const std::size_t num_choices = question.choices.size();
    const data::Verdict verdict = data::verdict_of(question, left.first(num_choices));
    left = left.subspan(num_choices);
    ++result.num_questions;
    result.num_right += verdict.right;
    result.num_right_by_bytes += verdict.right_by_bytes;
  }
  return result;
}

std::int64_t parts_of_row(const model::ModelShape& own) {
  return own.context.degree * own.position_runs();
}

}  // namespace

std::int64_t Evaluation::num_task_passes(const data::Task& task) const {
  const std::int64_t length = options_.model.seq_length;
  return passes_over(TaskRows(task, length, options_.separate_documents).count());
}

// Of each choice, the sum of the losses of its tokens over all ranks. A rank sends its part of one
// choice at a time, and `choices_of` each data rank's rows are known to all.
std::vector<ExactSum> Evaluation::add_up(const std::vector<ExactSum>& own,
                                         const std::vector<std::vector<std::int64_t>>& choices_of) {
  const auto& mine = choices_of[static_cast<std::size_t>(model_.rank().data_index())];
  std::size_t most = 0;
  for (const auto& choices : choices_of) most = std::max(most, choices.size());
  std::vector<ExactSum> sums(own.size());
  for (std::size_t i = 0; i < most; ++i) {
    EvaluationShare share;
    if (counts_losses() && i < mine.size()) {
      share.choice = static_cast<double>(mine[i]);
      share.loss_sum = own[static_cast<std::size_t>(mine[i])].numbers();
    }
    for (const EvaluationShare& of_rank : shares_.all_gather("task", share)) {
      if (of_rank.choice < 0.0) continue;
      sums[static_cast<std::size_t>(of_rank.choice)].add(of_rank.loss_sum);
    }
  }
  return sums;
}

EvaluationResult::Task Evaluation::score(const data::Task& task, const AskedToStop& asked,
                                         StopRequest& stop) {
  const sharding::Rank& rank = model_.rank();
  const model::ModelShape& shape = model_.shape();
  const bool shares = options_.separate_documents;
  const std::int64_t seq_length = options_.model.seq_length;
  const std::int64_t parts = parts_of_row(shape);
  const TaskRows rows(task, shares ? seq_length : row_length(task, seq_length, parts), shares);
  TrainingOptions options = options_;
  options.model.seq_length = rows.seq_length();
  const OwnPositions positions(options, rank);
  std::optional<PassLength> shorter;
  if (model_.computes()) {
    shorter.emplace(model_.transformer(), rows.seq_length() / shape.context.degree);
  }
  const std::vector<std::int64_t> in_row = positions.in_row();

  const auto rows_of = [&](std::int64_t pass, int data_index) {
    const std::int64_t first = first_row(pass, data_index);
    const std::int64_t end = std::min(first + options_.model.sequences, rows.count());
    return std::pair(first, std::max(first, end));
  };
  const auto fill = [&](std::int64_t pass) {
    const auto [first, end] = rows_of(pass, rank.data_index());
    const std::int64_t tokens = options_.model.sequences * rows.seq_length();
    data::BatchRows written(first_tokens(batch_.host(), tokens), rows.seq_length());
    for (std::int64_t row = first; row < end; ++row) rows.write(row, written);
    written.finish();
  };
  std::vector<ExactSum> sums(static_cast<std::size_t>(task.num_choices()));
  const auto take = [&](std::int64_t pass) {
    const auto [first, end] = rows_of(pass, rank.data_index());
    const std::vector<float> losses = model_.losses((end - first) * std::ssize(in_row));
    if (!counts_losses()) return;
    auto loss = losses.begin();
    for (std::int64_t row = first; row < end; ++row) {
      const std::vector<std::int64_t> choices = rows.choices_of_targets(row);
      for (const std::int64_t position : in_row) {
        const std::int64_t choice = choices[static_cast<std::size_t>(position)];
        if (choice >= 0) sums[static_cast<std::size_t>(choice)].add(*loss);
        ++loss;
      }
    }
  };
  const std::int64_t passes = passes_over(rows.count());
  stop = run_passes(passes, rows.seq_length(), positions, fill, take, asked);
  if (stop != StopRequest::kNone) return {};

  std::vector<std::vector<std::int64_t>> choices_of(static_cast<std::size_t>(rank.data_degree()));
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (int index = 0; index < rank.data_degree(); ++index) {
      const auto [first, end] = rows_of(pass, index);
      if (first >= end) continue;
      for (std::int64_t i = rows.first_choice(first); i < rows.first_choice(end); ++i) {
        choices_of[static_cast<std::size_t>(index)].push_back(i);
      }
    }
  }
  return counted(task, add_up(sums, choices_of));
}

}  // namespace sherd::engine
