#include "engine/train/token_feed.h"

#include "engine/data/tokens_ahead.h"

namespace sherd::engine {

std::vector<BufferSpec> batch_buffers(const TrainingOptions& options) {
  std::vector<BufferSpec> buffers = training_batch_buffers("batch.0", options, kAlways);
  const std::vector<BufferSpec> second = training_batch_buffers("batch.1", options, kAlways);
  buffers.insert(buffers.end(), second.begin(), second.end());
  return buffers;
}

TokenFeed::TokenFeed(const TrainingOptions& options, const sharding::Rank& rank,
                     data::FillBatch fill)
    : rank_(rank),
      num_micro_steps_(options.num_micro_steps),
      shape_{.micro_batch_size = options.model.sequences,
             .num_micro_steps = options.num_micro_steps,
             .world = rank.data_degree(),
             .num_replicas = rank.mesh.degree(sharding::kReplicateAxis)},
      positions_(options, rank),
      fill_([positions = positions_, fill = std::move(fill), length = options.model.seq_length](
                std::int64_t step, std::int64_t micro_step, const data::Batch& batch) {
        fill(step, micro_step, batch);
        data::fill_tokens_ahead(batch, length);
        positions.move_to_front(batch);
      }) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    places_[i] = {{rank, training_batch_buffers(fmt::format("batch.{}", i), options, kAlways)},
                  rank.make_event(),
                  rank.make_event()};
  }
  if (rank.separate_memory()) copies_ = rank.make_stream(StreamPurpose::kCopy, "tokens");
}

void TokenFeed::start(std::int64_t step) {
  first_ = next_ = brought_ = step * num_micro_steps_;
  prefetcher_.emplace(fill_, step, num_micro_steps_,
                      std::array{places_[0].batch.host(), places_[1].batch.host()});
}

TokenBatch TokenFeed::next(std::int64_t step, std::int64_t micro_step) {
  TokenBatch batch = positions_.of(tokens(step, micro_step));
  batch.first_row = shape_.first_row(micro_step, rank_.data_index());
  return batch;
}

TokenBatch TokenFeed::tokens(std::int64_t step, std::int64_t micro_step) {
  const std::int64_t number = step * num_micro_steps_ + micro_step;
  if (number != next_ || !prefetcher_) return make_anew(step, micro_step);
  ++next_;
  if (!copies_) {
    const data::Batch batch = prefetcher_->next();
    SHERD_CHECK(batch.inputs.data == place_of(number).batch.host().inputs.data,
                "batch {} in the other's place", number);
    return place_of(number).batch.device();
  }
  rank_.compute().record(*place_of(number + 1).computed);  // the batch before this one
  if (brought_ == number) bring(number);
  if (prefetcher_->has_next()) bring(number + 1);
  rank_.compute().wait(*place_of(number).copied);
  return place_of(number).batch.device();
}

void TokenFeed::bring(std::int64_t number) {
  copies_->synchronize();  // the batch before it has left the host's memory
  const data::Batch batch = prefetcher_->next();
  const Place& place = place_of(number);
  SHERD_CHECK(batch.inputs.data == place.batch.host().inputs.data, "batch {} in the other's place",
              number);
  copies_->wait(*place.computed);
  place.batch.to_device(*copies_);
  copies_->record(*place.copied);
  brought_ = number + 1;
}

TokenBatch TokenFeed::make_anew(std::int64_t step, std::int64_t micro_step) {
  prefetcher_.reset();
  if (copies_) copies_->synchronize();
  rank_.compute().synchronize();
  fill_(step, micro_step, places_[0].batch.host());
  places_[0].batch.to_device(rank_.compute());
  return places_[0].batch.device();
}

}  // namespace sherd::engine
