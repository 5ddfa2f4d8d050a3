// Evaluation of losses on whole answers, and of their reference.
#include <algorithm>

#include "engine/train/evaluation.h"

namespace sherd::engine {
namespace {

void append(std::vector<Answer>& answers, const std::vector<data::RowDocument>& documents,
            std::int64_t first_token) {
  for (const data::RowDocument& document : documents) {
    answers.push_back(
        {first_token + document.first, document.count, document.number, document.is_wanted});
  }
}

std::span<const std::int32_t> ids(const Tensor& tensor) {
  return {tensor.as<std::int32_t>(), static_cast<std::size_t>(tensor.numel)};
}

}  // namespace

// Rows of a pass, up to `end` of all.
template <class DocumentsOf>
std::vector<Answer> answers_of_rows(std::int64_t first, std::int64_t end, std::int64_t seq_length,
                                    const DocumentsOf& documents_of) {
  std::vector<Answer> answers;
  for (std::int64_t row = first; row < end; ++row) {
    append(answers, documents_of(row), (row - first) * seq_length);
  }
  return answers;
}

Evaluation::Mean Evaluation::mean_of_answers(int set, std::int64_t windows,
                                             const AskedToStop& asked, StopRequest& stop) {
  const std::int64_t seq_length = options_.model.seq_length;
  const auto rows_of = [&](std::int64_t pass) {
    const std::int64_t first = first_row(pass, model_.rank().data_index());
    return std::pair(first,
                     std::clamp(first + options_.model.sequences, first, std::max(first, windows)));
  };
  const auto fill = [&](std::int64_t pass) {
    const auto [first, end] = rows_of(pass);
    batcher_.fill_validation(first, end - first, batch_.host(), set);
  };
  // A pipeline has filled the memory of targets with later passes.
  const bool overwrites = model_.passes_at_once() > 1;
  AnswerSums own;
  const auto take = [&](std::int64_t pass) {
    const auto [first, end] = rows_of(pass);
    const std::vector<float> losses = model_.losses((end - first) * seq_length);
    if (!counts_losses()) return;
    if (overwrites) fill(pass);
    const auto answers = answers_of_rows(first, end, seq_length, [&](std::int64_t row) {
      return batcher_.documents_of_window(row, set);
    });
    own.add(score_answers(options_.preference, answers, losses, ids(batch_.host().targets),
                          reference_, {}));
  };
  stop = run_passes(passes_over(windows), seq_length, OwnPositions(options_, model_.rank()), fill,
                    take, asked);
  if (stop != StopRequest::kNone) return {};
  AnswerSums all;
  for (const auto& row : answers_->all_gather("answers of an evaluation", own.numbers())) {
    all.add(row);
  }
  const std::int64_t examples = batcher_.num_validation_examples(0, windows, set);
  return {all[AnswerSums::kLoss].value() / static_cast<double>(examples), examples, 0,
          report_of(options_.preference, all)};
}

// Each rank sends its answers' scores, in the order of its rows, in messages of one size.
std::vector<double> Evaluation::reference(const AskedToStop& asked, StopRequest& stop) {
  const std::int64_t seq_length = options_.model.seq_length;
  const std::int64_t num_rows = batcher_.num_example_rows();
  const auto rows_of = [&](std::int64_t pass, int data_index) {
    const std::int64_t first = first_row(pass, data_index);
    return std::pair(
        first, std::clamp(first + options_.model.sequences, first, std::max(first, num_rows)));
  };
  const int own_index = model_.rank().data_index();
  const auto fill = [&](std::int64_t pass) {
    const auto [first, end] = rows_of(pass, own_index);
    batcher_.fill_example_rows(first, end - first, batch_.host());
  };
  std::vector<double> reference(static_cast<std::size_t>(batcher_.num_documents()));
  const bool overwrites = model_.passes_at_once() > 1;
  std::vector<Answer> own;
  const auto take = [&](std::int64_t pass) {
    const auto [first, end] = rows_of(pass, own_index);
    const std::vector<float> losses = model_.losses((end - first) * seq_length);
    if (!counts_losses()) return;
    if (overwrites) fill(pass);
    for (const Answer& answer : answers_of_rows(first, end, seq_length, [&](std::int64_t row) {
           return batcher_.documents_of_example_row(row);
         })) {
      own.push_back(answer);
      reference[static_cast<std::size_t>(answer.number)] =
          score_of(answer, losses, ids(batch_.host().targets)).log_probability;
    }
  };
  stop = run_passes(passes_over(num_rows), seq_length, OwnPositions(options_, model_.rank()), fill,
                    take, asked);
  if (stop != StopRequest::kNone) return {};
  share(own, reference);
  return reference;
}

// A message has pairs of a number and its score; a number of -1 fills the rest.
void Evaluation::share(const std::vector<Answer>& own, std::vector<double>& scores) {
  constexpr std::int64_t kPairs = AnswerSums::kNumbers / 2;
  const auto count = static_cast<std::int64_t>(scores.size());
  for (std::int64_t sent = 0, received = 0; received < count; sent += kPairs) {
    std::vector<double> message(AnswerSums::kNumbers, -1.0);
    for (std::int64_t i = sent; i < std::min(sent + kPairs, std::ssize(own)); ++i) {
      const auto number = own[static_cast<std::size_t>(i)].number;
      const auto at = static_cast<std::size_t>(2 * (i - sent));
      message[at] = static_cast<double>(number);
      message[at + 1] = scores[static_cast<std::size_t>(number)];
    }
    for (const auto& row : answers_->all_gather("scores of answers", message)) {
      for (std::size_t at = 0; at + 1 < row.size(); at += 2) {
        if (row[at] < 0.0) continue;
        scores[static_cast<std::size_t>(row[at])] = row[at + 1];
        ++received;
      }
    }
  }
}

}  // namespace sherd::engine
