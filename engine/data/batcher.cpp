#include "engine/data/batcher.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/core.h>

#include "core/error.h"
#include "engine/data/draw.h"

namespace sherd::data {
namespace {

// The first source's seed is the run's, as without other sources.
std::uint64_t seed_of(std::uint64_t seed, std::int64_t cut, std::size_t source) {
  const std::uint64_t of_cut = cut == 0 ? seed : draw(seed, Draw::kCut, cut);
  return source == 0 ? of_cut : draw(of_cut, Draw::kSource, static_cast<std::int64_t>(source));
}

std::string documents_text(const DocumentRows& rows, std::int64_t seq_length,
                           std::string_view label) {
  const auto tokens = static_cast<double>(rows.num_tokens());
  const auto counted = [](std::int64_t count, std::string_view what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return fmt::format("{}: documents in {}, {}, {:.1f} % full; {:.1f} % of the tokens have a target",
                     label, counted(rows.num_pieces(), "piece"),
                     counted(rows.rows_per_epoch(), "sequence"),
                     100.0 * tokens / static_cast<double>(rows.rows_per_epoch() * seq_length),
                     100.0 * static_cast<double>(rows.num_targets()) / tokens);
}

BatchSources alone(const std::shared_ptr<const Dataset>& dataset) {
  return {.training = {{.name = "training", .dataset = dataset}},
          .validation = {{.name = "validation", .dataset = dataset}}};
}

}  // namespace

Batcher::Batcher(const std::shared_ptr<const Dataset>& dataset, BatchShape shape)
    : Batcher(alone(dataset), shape) {}

Batcher::Batcher(BatchSources sources, BatchShape shape)
    : sources_(std::move(sources.training)), shape_(shape), begin_(std::move(sources.begin)) {
  SHERD_CHECK(shape.seq_length > 0 && shape.micro_batch_size > 0 && shape.num_micro_steps > 0 &&
                  shape.world > 0 && shape.num_replicas > 0 &&
                  shape.world % shape.num_replicas == 0,
              "batch of {} x {} tokens, {} micro-steps, {} ranks", shape.micro_batch_size,
              shape.seq_length, shape.num_micro_steps, shape.world);
  const auto sequences = [this](const std::shared_ptr<const Dataset>& dataset, Split split,
                                std::uint64_t seed) {
    SHERD_CHECK(dataset->seq_length() == shape_.seq_length,
                "data opened for sequences of {} tokens, not {}", dataset->seq_length(),
                shape_.seq_length);
    return Sequences(
        dataset, split,
        {.packing = shape_.packing, .seed = seed, .rows_per_step = shape_.global_batch_size()});
  };
  begin_.used.resize(sources_.size());
  begin_.earlier.resize(sources_.size());
  std::int64_t all = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    training_.push_back(
        sequences(sources_[i].dataset, Split::kTrain, seed_of(shape.seed, begin_.cut, i)));
    all += training_.back().count();
  }
  for (std::size_t i = 0; i < sources.validation.size(); ++i) {
    const ValidationSource& source = sources.validation[i];
    Sequences set = sequences(source.dataset, Split::kValidation, shape.seed);
    if (set.count() == 0) continue;
    all += set.count();
    if (static_cast<int>(i) == sources.main_validation) main_validation_ = num_validation_sets();
    validation_.push_back(std::move(set));
    validation_sources_.push_back(source);
  }
  SHERD_CHECK(all > 0, "no window of {} tokens", shape.seq_length);
  balances_ = sources_.size() > 1 && std::ranges::any_of(training_, [](const Sequences& source) {
                return source.document_rows() != nullptr;
              });
  make_stages(sources.stages);
}

void Batcher::make_stages(const std::vector<Stage>& stages) {
  std::vector<double> own;
  for (const Source& source : sources_) own.push_back(source.weight);
  const std::vector<Stage> all = stages.empty() ? std::vector<Stage>(1) : stages;
  std::vector<std::int64_t> used = begin_.used;
  std::int64_t first_step = begin_.first_step;
  for (const Stage& stage : all) {
    stages_.push_back({first_step, Mixture(stage.weights.empty() ? own : stage.weights), used});
    const Mixture& mixture = stages_.back().mixture;
    if (const int i = mixture.without_sequences(); i >= 0) {
      throw DataError(
          "data.sources: the weight of \"{}\" gives it none of {} sequences. The smallest weight "
          "that works is {:.3g}; 0 leaves it out.",
          source(i).name, Mixture::kBlock, mixture.smallest_weight(i));
    }
    if (stage.num_steps == 0) break;
    first_step += stage.num_steps;
    for (std::size_t i = 0; i < used.size(); ++i) {
      used[i] += mixture.count(static_cast<int>(i), stage.num_steps * shape_.global_batch_size());
    }
  }
}

const Batcher::StageMixture& Batcher::stage_of(std::int64_t sample) const {
  const std::int64_t step = sample / shape_.global_batch_size();
  const auto later = [](std::int64_t s, const StageMixture& stage) { return s < stage.first_step; };
  return *std::prev(std::upper_bound(stages_.begin(), stages_.end(), step, later));
}

Mixture::Place Batcher::place_of(std::int64_t sample) const {
  if (!balances_) return place_in_mixture(sample);
  const std::int64_t rows = shape_.global_batch_size(), step = sample / rows;
  const StepOrder order = order_of(step);
  return place_in_mixture(step * rows + (*order)[static_cast<std::size_t>(sample % rows)]);
}

std::int64_t Batcher::cost_of(const Mixture::Place& place) const {
  const DocumentRows* const rows = training(place.source).document_rows();
  if (!rows) return shape_.seq_length * shape_.seq_length;
  std::int64_t cost = 0;
  for (const std::int64_t length : rows->lengths_of(place.number)) cost += length * length;
  return cost;
}

Batcher::StepOrder Batcher::order_of(std::int64_t step) const {
  const auto at = static_cast<std::size_t>(step) % orders_->of_steps.size();
  {
    std::lock_guard lock(orders_->mutex);
    if (const auto& [number, order] = orders_->of_steps[at]; order && number == step) return order;
  }
  const std::int64_t rows = shape_.global_batch_size();
  std::vector<std::int64_t> costs;
  for (std::int64_t row = 0; row < rows; ++row) {
    costs.push_back(cost_of(place_in_mixture(step * rows + row)));
  }
  auto order =
      std::make_shared<const std::vector<std::int32_t>>(balanced_order(costs, shape_.parts()));
  std::lock_guard lock(orders_->mutex);
  orders_->of_steps[at] = {step, order};
  return order;
}

std::vector<std::int64_t> Batcher::costs_of_rows(std::int64_t step) const {
  std::vector<std::int64_t> costs;
  for (std::int64_t sample = step * shape_.global_batch_size(); sample < end_of(step); ++sample) {
    costs.push_back(cost_of(place_of(sample)));
  }
  return costs;
}

double Batcher::imbalance(std::int64_t first_step, std::int64_t num_steps) const {
  std::int64_t waited_for = 0, all = 0;
  for (std::int64_t step = first_step; step < first_step + num_steps; ++step) {
    std::vector<std::int64_t> costs = costs_of_rows(step);
    all += std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
    costs.resize(static_cast<std::size_t>(shape_.global_batch_size()));
    waited_for += waited_work(costs);
  }
  return all > 0 ? static_cast<double>(waited_for * shape_.world) / static_cast<double>(all) : 1.0;
}

// The most expensive micro-batches of each micro-step, of the replica where they cost most.
std::int64_t Batcher::waited_work(std::span<const std::int64_t> costs) const {
  const std::int64_t of_replica = shape_.world / shape_.num_replicas;
  std::int64_t largest = 0;
  auto row = costs.begin();
  for (int replica = 0; replica < shape_.num_replicas; ++replica) {
    std::int64_t of_steps = 0;
    for (std::int64_t micro_step = 0; micro_step < shape_.num_micro_steps; ++micro_step) {
      std::int64_t of_rank = 0;
      for (std::int64_t rank = 0; rank < of_replica; ++rank, row += shape_.micro_batch_size) {
        of_rank =
            std::max(of_rank, std::accumulate(row, row + shape_.micro_batch_size, std::int64_t{0}));
      }
      of_steps += of_rank;
    }
    largest = std::max(largest, of_steps);
  }
  return largest;
}

Mixture::Place Batcher::place_in_mixture(std::int64_t sample) const {
  SHERD_CHECK(sample >= 0, "sample {}", sample);
  const StageMixture& stage = stage_of(sample);
  Mixture::Place place = stage.mixture.at(sample - stage.first_step * shape_.global_batch_size());
  place.number += stage.used[static_cast<std::size_t>(place.source)];
  return place;
}

Sequences::Place Batcher::training_place(std::int64_t sample) const {
  const Mixture::Place place = place_of(sample);
  return training(place.source).place(place.number);
}

std::int64_t Batcher::num_used(int source, std::int64_t num_steps) const {
  if (num_steps <= begin_.first_step) return begin_.used[static_cast<std::size_t>(source)];
  const std::int64_t samples = num_samples(num_steps);
  if (samples == 0) return 0;
  const StageMixture& stage = stage_of(samples - 1);
  return stage.used[static_cast<std::size_t>(source)] +
         stage.mixture.count(source, samples - stage.first_step * shape_.global_batch_size());
}

std::int64_t Batcher::tokens_of(int source, std::int64_t num_steps) const {
  const auto i = static_cast<std::size_t>(source);
  return begin_.earlier[i] + (num_used(source, num_steps) - begin_.used[i]) * shape_.seq_length;
}

std::int64_t Batcher::tokens_of(int source, std::int64_t num_steps,
                                const std::vector<Skip>& skips) const {
  return sum_without(first_step(), num_steps, skips,
                     [&](std::int64_t steps) { return tokens_of(source, steps); });
}

std::int64_t Batcher::num_tokens(std::int64_t num_steps) const {
  return begin_.tokens +
         (num_samples(num_steps) - num_samples(begin_.first_step)) * shape_.seq_length;
}

SegmentBegin Batcher::end_at(std::int64_t step, std::int64_t cut) const {
  SegmentBegin end{.first_step = step, .cut = cut, .tokens = num_tokens(step)};
  for (int i = 0; i < num_sources(); ++i) {
    end.used.push_back(cut == begin_.cut ? num_used(i, step) : 0);
    end.earlier.push_back(tokens_of(i, step));
  }
  return end;
}

std::int64_t Batcher::num_steps() const {
  const std::int64_t rows = shape_.global_batch_size();
  return (shape_.num_epochs * num_windows() + rows - 1) / rows;
}

std::int64_t Batcher::num_samples(std::int64_t num_steps) const {
  const std::int64_t samples = num_steps * shape_.global_batch_size();
  if (shape_.num_epochs == 0) return samples;
  const std::int64_t padding =
      this->num_steps() * shape_.global_batch_size() - shape_.num_epochs * num_windows();
  return num_steps < this->num_steps() ? samples : samples - padding;
}

// The sample after a step's last one.
std::int64_t Batcher::end_of(std::int64_t step) const {
  const std::int64_t end = (step + 1) * shape_.global_batch_size();
  return shape_.num_epochs > 0 && step + 1 == num_steps() ? shape_.num_epochs * num_windows() : end;
}

std::int64_t Batcher::num_targets(std::int64_t step) const {
  return num_targets_ahead(step, 0);
}

std::int64_t Batcher::num_targets_ahead(std::int64_t step, std::int64_t ahead) const {
  const bool all_joined = std::ranges::none_of(
      training_, [](const Sequences& sequences) { return sequences.document_rows() != nullptr; });
  if (all_joined) return (num_samples(step + 1) - num_samples(step)) * (shape_.seq_length - ahead);
  std::int64_t targets = 0;
  for (std::int64_t sample = step * shape_.global_batch_size(); sample < end_of(step); ++sample) {
    const Mixture::Place place = place_of(sample);
    targets += training(place.source).num_targets(place.number, ahead);
  }
  return targets;
}

std::int64_t Batcher::num_targets(std::int64_t step, int part, int num_parts) const {
  const std::int64_t rows = shape_.global_batch_size() / num_parts;
  const std::int64_t first = step * shape_.global_batch_size() + part * rows;
  std::int64_t targets = 0;
  for (std::int64_t sample = first; sample < std::min(first + rows, end_of(step)); ++sample) {
    const Mixture::Place place = place_of(sample);
    const Sequences& sequences = training(place.source);
    targets += sequences.document_rows() ? sequences.num_targets(place.number) : shape_.seq_length;
  }
  return targets;
}

std::vector<std::int64_t> Batcher::num_targets_of_sources(std::int64_t step) const {
  std::vector<std::int64_t> targets(sources_.size());
  for (std::int64_t sample = step * shape_.global_batch_size(); sample < end_of(step); ++sample) {
    const Mixture::Place place = place_of(sample);
    const Sequences& sequences = training(place.source);
    targets[static_cast<std::size_t>(place.source)] +=
        sequences.document_rows() ? sequences.num_targets(place.number) : shape_.seq_length;
  }
  return targets;
}

void Batcher::fill(std::int64_t step, std::int64_t micro_step, int rank, const Batch& batch) const {
  const std::int64_t rows = shape_.micro_batch_size;
  SHERD_CHECK(step >= begin_.first_step && micro_step >= 0 && micro_step < shape_.num_micro_steps &&
                  rank >= 0 && rank < shape_.world,
              "step {}, micro-step {} of {}, rank {} of {}", step, micro_step,
              shape_.num_micro_steps, rank, shape_.world);
  SHERD_CHECK(
      batch.inputs.numel == rows * shape_.seq_length && batch.targets.numel == batch.inputs.numel,
      "{} inputs and {} targets for {} x {} tokens", batch.inputs.numel, batch.targets.numel, rows,
      shape_.seq_length);
  const std::int64_t first_sample =
      step * shape_.global_batch_size() + shape_.first_row(micro_step, rank);
  const std::int64_t count = std::clamp(end_of(step) - first_sample, std::int64_t{0}, rows);
  BatchRows written(batch, shape_.seq_length);
  for (std::int64_t row = 0; row < count; ++row) {
    const Mixture::Place place = place_of(first_sample + row);
    training(place.source).write(place.number, written);
  }
  written.finish();
}

std::int64_t Batcher::num_validation_windows(int set) const {
  return set < num_validation_sets() ? validation_[static_cast<std::size_t>(set)].count() : 0;
}

const Sequences& Batcher::validation(int set, std::int64_t first_window) const {
  SHERD_CHECK(set >= 0 && set < num_validation_sets(), "validation window {} of 0 in set {} of {}",
              first_window, set, num_validation_sets());
  return validation_[static_cast<std::size_t>(set)];
}

std::int64_t Batcher::num_validation_targets(std::int64_t first_window, std::int64_t count,
                                             int set) const {
  const Sequences& sequences = validation(set, first_window);
  if (!sequences.document_rows()) return count * shape_.seq_length;
  std::int64_t targets = 0;
  for (std::int64_t row = first_window; row < first_window + count; ++row) {
    targets += sequences.num_targets(row);
  }
  return targets;
}

void Batcher::fill_validation(std::int64_t first_window, std::int64_t count, const Batch& batch,
                              int set) const {
  BatchRows rows(batch, shape_.seq_length);
  for (std::int64_t row = 0; row < count; ++row) {
    validation(set, first_window).write(first_window + row, rows);
  }
  rows.finish();
}

void Batcher::fill_validation_sample(std::int64_t batch_size, std::int64_t first,
                                     std::int64_t count, const Batch& batch, int set) const {
  const Sequences& sequences = validation(set, first);
  BatchRows rows(batch, shape_.seq_length);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t drawn = first + row;
    const std::int64_t start =
        below(sequences.num_starts(),
              draw(shape_.seed, Draw::kSample, drawn / batch_size, drawn % batch_size));
    sequences.write_start(start, rows);
  }
  rows.finish();
}

std::string Batcher::summary() const {
  std::string text;
  const auto add = [&](const Sequences& sequences, std::string_view label) {
    const DocumentRows* const rows = sequences.document_rows();
    if (!rows || rows->num_pieces() == 0) return;
    if (!text.empty()) text += '\n';
    text += documents_text(*rows, shape_.seq_length, label);
  };
  for (std::size_t i = 0; i < training_.size(); ++i) {
    add(training_[i], training_.size() == 1 ? "training" : sources_[i].name);
  }
  for (std::size_t i = 0; i < validation_.size(); ++i) {
    add(validation_[i], validation_.size() == 1
                            ? "validation"
                            : fmt::format("validation {}", validation_sources_[i].name));
  }
  return text;
}

std::vector<StageFingerprint> Batcher::fingerprints() const {
  std::vector<StageFingerprint> fingerprints;
  for (const StageMixture& stage : stages_) {
    const std::vector<std::int64_t>& counts = stage.mixture.counts();
    std::uint64_t hash = 0;
    if (counts[0] == Mixture::kBlock) {
      hash = sources_[0].dataset->fingerprint();
    } else {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] == 0) continue;
        hash = hash_of(hash, i, counts[i], sources_[i].dataset->fingerprint());
      }
    }
    fingerprints.push_back({stage.first_step, hash});
  }
  return fingerprints;
}

}  // namespace sherd::data
