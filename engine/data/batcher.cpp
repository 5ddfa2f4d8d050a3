#include "engine/data/batcher.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "core/error.h"
#include "engine/data/shuffle.h"

namespace sherd::data {
namespace {

// What a draw is for, so that draws for different things are unrelated.
enum class Draw : std::uint8_t { kOrder = 1, kOffset = 2, kSample = 3 };

std::uint64_t draw(std::uint64_t seed, Draw purpose, std::int64_t where, std::int64_t which = 0) {
  return hash_of(seed, purpose, where, which);
}

std::int64_t below(std::int64_t limit, std::uint64_t bits) {
  return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(limit));
}

}  // namespace

Batcher::Batcher(std::shared_ptr<const Dataset> dataset, BatchShape shape)
    : dataset_(std::move(dataset)), shape_(shape) {
  SHERD_CHECK(shape.seq_length > 0 && shape.micro_batch_size > 0 && shape.num_micro_steps > 0 &&
                  shape.world > 0 && shape.num_replicas > 0 &&
                  shape.world % shape.num_replicas == 0,
              "batch of {} x {} tokens, {} micro-steps, {} ranks", shape.micro_batch_size,
              shape.seq_length, shape.num_micro_steps, shape.world);
  SHERD_CHECK(dataset_->seq_length() == shape.seq_length,
              "data opened for sequences of {} tokens, not {}", dataset_->seq_length(),
              shape.seq_length);
  if (dataset_->separate_documents()) {
    train_rows_ = std::make_shared<const DocumentRows>(
        dataset_, Split::kTrain, shape.packing,
        DocumentRows::Order{true, shape.seed, shape.global_batch_size()});
    validation_rows_ = std::make_shared<const DocumentRows>(
        dataset_, Split::kValidation, shape.packing, DocumentRows::Order{.shuffled = false});
    train_.num_windows = train_rows_->rows_per_epoch();
    validation_.num_windows = validation_rows_->rows_per_epoch();
  } else {
    train_ = windows_of(Split::kTrain);
    validation_ = windows_of(Split::kValidation);
  }
  SHERD_CHECK(train_.num_windows + validation_.num_windows > 0, "no window of {} tokens",
              shape.seq_length);
}

Batcher::Windows Batcher::windows_of(Split split) const {
  Windows windows;
  const std::vector<FilePart>& parts = dataset_->parts(split);
  for (std::size_t index = 0; index < parts.size(); ++index) {
    const FilePart& part = parts[index];
    const std::int64_t whole = (part.count - 1) / shape_.seq_length;
    Run run;
    run.part = part;
    run.index = static_cast<std::int64_t>(index);
    run.first_window = windows.num_windows;
    run.num_windows = split == Split::kTrain ? std::max<std::int64_t>(whole - 1, 1) : whole;
    run.first_start = windows.num_starts;
    windows.num_windows += run.num_windows;
    windows.num_starts += part.count - shape_.seq_length;
    windows.runs.push_back(run);
  }
  return windows;
}

const Batcher::Run& Batcher::Windows::run_at(std::int64_t Run::*first, std::int64_t place) const {
  const auto above = [first](std::int64_t p, const Run& run) { return p < run.*first; };
  return *std::prev(std::upper_bound(runs.begin(), runs.end(), place, above));
}

Batcher::Place Batcher::training_place(std::int64_t sample) const {
  SHERD_CHECK(sample >= 0, "sample {}", sample);
  const std::int64_t epoch = sample / train_.num_windows;
  const Permutation order(static_cast<std::uint64_t>(train_.num_windows),
                          draw(shape_.seed, Draw::kOrder, epoch));
  const auto window =
      static_cast<std::int64_t>(order(static_cast<std::uint64_t>(sample % train_.num_windows)));
  const Run& run = train_.run_at(&Run::first_window, window);
  const std::int64_t slack = run.part.count - 1 - run.num_windows * shape_.seq_length;
  const std::int64_t offset = below(slack + 1, draw(shape_.seed, Draw::kOffset, epoch, run.index));
  return {run.part.file, run.part.first + offset + (window - run.first_window) * shape_.seq_length};
}

Batcher::Place Batcher::validation_place(std::int64_t window) const {
  SHERD_CHECK(window >= 0 && window < validation_.num_windows, "validation window {} of {}", window,
              validation_.num_windows);
  const Run& run = validation_.run_at(&Run::first_window, window);
  return {run.part.file, run.part.first + (window - run.first_window) * shape_.seq_length};
}

void Batcher::write_row(Place place, std::int64_t row, const Batch& batch) const {
  const std::int64_t seq_length = shape_.seq_length;
  const TokenFile& file = dataset_->file(place.file);
  file.read(place.first, seq_length, batch.inputs.as<std::int32_t>() + row * seq_length);
  file.read(place.first + 1, seq_length, batch.targets.as<std::int32_t>() + row * seq_length);
}

void Batcher::clear_rows_from(std::int64_t row, const Batch& batch) const {
  const std::int64_t tokens = row * shape_.seq_length;
  SHERD_CHECK(batch.inputs.numel >= tokens && batch.targets.numel == batch.inputs.numel,
              "{} inputs and {} targets for {} x {} tokens", batch.inputs.numel,
              batch.targets.numel, row, shape_.seq_length);
  for (const Tensor& all : {batch.inputs, batch.targets}) {
    const std::int32_t fill = all.data == batch.targets.data ? kNoTarget : 0;
    std::fill_n(all.as<std::int32_t>() + tokens, all.numel - tokens, fill);
  }
}

std::int64_t Batcher::num_steps() const {
  const std::int64_t rows = shape_.global_batch_size();
  return (shape_.num_epochs * train_.num_windows + rows - 1) / rows;
}

std::int64_t Batcher::num_samples(std::int64_t num_steps) const {
  const std::int64_t samples = num_steps * shape_.global_batch_size();
  return shape_.num_epochs == 0 ? samples
                                : std::min(samples, shape_.num_epochs * train_.num_windows);
}

std::int64_t Batcher::num_targets(std::int64_t step) const {
  const std::int64_t begin = num_samples(step), end = num_samples(step + 1);
  if (!train_rows_) return (end - begin) * shape_.seq_length;
  std::int64_t targets = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    targets += train_rows_->targets_of(row);
  }
  return targets;
}

std::int64_t Batcher::num_validation_targets(std::int64_t first_window, std::int64_t count) const {
  if (!validation_rows_) return count * shape_.seq_length;
  std::int64_t targets = 0;
  for (std::int64_t row = first_window; row < first_window + count; ++row) {
    targets += validation_rows_->targets_of(row);
  }
  return targets;
}

std::string Batcher::summary() const {
  std::string text;
  for (const DocumentRows* rows : {train_rows_.get(), validation_rows_.get()}) {
    if (!rows || rows->num_pieces() == 0) continue;
    const auto tokens = static_cast<double>(rows->num_tokens());
    const auto counted = [](std::int64_t count, std::string_view what) {
      return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
    };
    text += fmt::format(
        "{}{}: documents in {}, {}, {:.1f} % full; {:.1f} % of the tokens have a target",
        text.empty() ? "" : "\n", rows == train_rows_.get() ? "training" : "validation",
        counted(rows->num_pieces(), "piece"), counted(rows->rows_per_epoch(), "sequence"),
        100.0 * tokens / static_cast<double>(rows->rows_per_epoch() * shape_.seq_length),
        100.0 * static_cast<double>(rows->num_targets()) / tokens);
  }
  return text;
}

void Batcher::fill(std::int64_t step, std::int64_t micro_step, int rank, const Batch& batch) const {
  const std::int64_t rows = shape_.micro_batch_size;
  SHERD_CHECK(step >= 0 && micro_step >= 0 && micro_step < shape_.num_micro_steps && rank >= 0 &&
                  rank < shape_.world,
              "step {}, micro-step {} of {}, rank {} of {}", step, micro_step,
              shape_.num_micro_steps, rank, shape_.world);
  SHERD_CHECK(
      batch.inputs.numel == rows * shape_.seq_length && batch.targets.numel == batch.inputs.numel,
      "{} inputs and {} targets for {} x {} tokens", batch.inputs.numel, batch.targets.numel, rows,
      shape_.seq_length);
  const std::int64_t first_sample =
      step * shape_.global_batch_size() + shape_.first_row(micro_step, rank);
  const std::int64_t count =
      std::clamp(num_samples(step + 1) - first_sample, std::int64_t{0}, rows);
  if (train_rows_) return train_rows_->write(first_sample, count, batch);
  clear_rows_from(count, batch);
  for (std::int64_t row = 0; row < count; ++row) {
    write_row(training_place(first_sample + row), row, batch);
  }
}

void Batcher::fill_validation(std::int64_t first_window, std::int64_t count,
                              const Batch& batch) const {
  if (validation_rows_) return validation_rows_->write(first_window, count, batch);
  clear_rows_from(count, batch);
  for (std::int64_t row = 0; row < count; ++row) {
    write_row(validation_place(first_window + row), row, batch);
  }
}

void Batcher::fill_validation_sample(std::int64_t batch_size, std::int64_t first,
                                     std::int64_t count, const Batch& batch) const {
  clear_rows_from(count, batch);
  SHERD_CHECK(validation_.num_starts > 0, "no validation window of {} tokens", shape_.seq_length);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t drawn = first + row;
    const std::int64_t start =
        below(validation_.num_starts,
              draw(shape_.seed, Draw::kSample, drawn / batch_size, drawn % batch_size));
    const Run& run = validation_.run_at(&Run::first_start, start);
    write_row({run.part.file, run.part.first + start - run.first_start}, row, batch);
  }
}

}  // namespace sherd::data
