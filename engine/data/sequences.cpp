#include "engine/data/sequences.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/data/draw.h"
#include "engine/data/shuffle.h"

namespace sherd::data {

Sequences::Sequences(std::shared_ptr<const Dataset> dataset, Split split, const Order& order)
    : dataset_(std::move(dataset)), split_(split), order_(order) {
  if (!dataset_->separate_documents()) {
    find_windows();
    return;
  }
  const bool shuffled = split == Split::kTrain;
  document_rows_ = std::make_shared<const DocumentRows>(
      dataset_, split, order.packing,
      shuffled ? DocumentRows::Order{true, order.seed, order.rows_per_step}
               : DocumentRows::Order{.shuffled = false});
  count_ = document_rows_->rows_per_epoch();
}

void Sequences::find_windows() {
  const std::int64_t seq_length = dataset_->seq_length();
  const std::vector<FilePart>& parts = dataset_->parts(split_);
  for (std::size_t index = 0; index < parts.size(); ++index) {
    const FilePart& part = parts[index];
    const std::int64_t whole = (part.count - 1) / seq_length;
    Run run;
    run.part = part;
    run.index = static_cast<std::int64_t>(index);
    run.first_window = count_;
    run.num_windows = split_ == Split::kTrain ? std::max<std::int64_t>(whole - 1, 1) : whole;
    run.first_start = num_starts_;
    count_ += run.num_windows;
    num_starts_ += part.count - seq_length;
    runs_.push_back(run);
  }
}

const Sequences::Run& Sequences::run_at(std::int64_t Run::*first, std::int64_t place) const {
  const auto above = [first](std::int64_t p, const Run& run) { return p < run.*first; };
  return *std::prev(std::upper_bound(runs_.begin(), runs_.end(), place, above));
}

Sequences::Place Sequences::place(std::int64_t number) const {
  SHERD_CHECK(number >= 0 && (split_ == Split::kTrain || number < count_), "sequence {} of {}",
              number, count_);
  const std::int64_t seq_length = dataset_->seq_length();
  if (split_ == Split::kValidation) {
    const Run& run = run_at(&Run::first_window, number);
    return {run.part.file, run.part.first + (number - run.first_window) * seq_length};
  }
  const std::int64_t epoch = number / count_;
  const Permutation order(static_cast<std::uint64_t>(count_),
                          draw(order_.seed, Draw::kOrder, epoch));
  const auto window = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(number % count_)));
  const Run& run = run_at(&Run::first_window, window);
  const std::int64_t slack = run.part.count - 1 - run.num_windows * seq_length;
  const std::int64_t offset = below(slack + 1, draw(order_.seed, Draw::kOffset, epoch, run.index));
  return {run.part.file, run.part.first + offset + (window - run.first_window) * seq_length};
}

void Sequences::write_window(Place place, BatchRows& rows) const {
  const std::int64_t seq_length = dataset_->seq_length();
  const std::int64_t token = rows.begin_row();
  rows.add_document(token, seq_length);
  const TokenFile& file = dataset_->file(place.file);
  file.read(place.first, seq_length, rows.batch().inputs.as<std::int32_t>() + token);
  file.read(place.first + 1, seq_length, rows.batch().targets.as<std::int32_t>() + token);
}

void Sequences::write(std::int64_t number, BatchRows& rows) const {
  if (document_rows_) return document_rows_->write(number, rows);
  write_window(place(number), rows);
}

void Sequences::write_start(std::int64_t start, BatchRows& rows) const {
  const Run& run = run_at(&Run::first_start, start);
  write_window({run.part.file, run.part.first + start - run.first_start}, rows);
}

std::int64_t Sequences::num_examples(std::int64_t number) const {
  return document_rows_ ? document_rows_->num_examples_of(number) : 1;
}

std::int64_t Sequences::num_targets(std::int64_t number, std::int64_t ahead) const {
  return document_rows_ ? document_rows_->targets_of(number, ahead)
                        : dataset_->seq_length() - ahead;
}

}  // namespace sherd::data
