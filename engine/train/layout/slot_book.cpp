#include "engine/train/layout/slot_book.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "core/error.h"

namespace sherd::engine {

using schedule::Action;
using schedule::ActionKind;

int SlotBook::Slots::take() {
  if (free_.empty()) return size_++;
  return free_.extract(free_.begin()).value();
}

SlotBook::SlotBook(const RankPipeline& pipeline, bool one_set_for_all, bool trains)
    : pipeline_(&pipeline), one_set_for_all_(one_set_for_all), trains_(trains) {
  if (one_set_for_all_) kept_.take();
}

SlotBook::Place SlotBook::make_place(const Chunk& chunk, int micro_batch) {
  Place place;
  const auto handed = handed_over_.find({chunk.number, micro_batch});
  if (handed == handed_over_.end()) {
    place.residuals.push_back(residuals_.take());
  } else {
    place.residuals.push_back(handed->second);
    handed_over_.erase(handed);
  }
  for (int i = 1; i < chunk.num_blocks; ++i) place.residuals.push_back(residuals_.take());
  place.residuals.push_back(pipeline_->sends(chunk) ? Place::kOutbox : residuals_.take());
  for (int i = 0; i < chunk.num_blocks; ++i) {
    place.kept.push_back(one_set_for_all_ ? 0 : kept_.take());
  }
  return place;
}

const SlotBook::Place& SlotBook::begin(const Action& action) {
  const Key key{action.chunk, action.micro_batch};
  const Chunk& chunk = pipeline_->chunk(action.chunk);
  if (action.kind == ActionKind::kForward) {
    return places_[key] = make_place(chunk, action.micro_batch);
  }
  Place& place = places_.at(key);
  if (schedule::makes_input_gradient(action.kind)) {
    if (const auto handed = gradients_handed_over_.find(key);
        handed != gradients_handed_over_.end()) {
      place.gradient_in = handed->second;
      gradients_handed_over_.erase(handed);
    }
    if (!chunk.embedding && !pipeline_->receives(chunk)) place.gradient_out = residuals_.take();
    for (int i = 0; action.kind == ActionKind::kInputGradient && i < chunk.num_blocks; ++i) {
      place.waiting.push_back(waiting_.take());
      if (one_set_for_all_) place.kept[static_cast<std::size_t>(i)] = kept_.take();
    }
  }
  return place;
}

void SlotBook::end(const Action& action) {
  const Key key{action.chunk, action.micro_batch};
  const Chunk& chunk = pipeline_->chunk(action.chunk);
  Place& place = places_.at(key);
  if (action.kind == ActionKind::kForward) {
    const bool hands_over = !chunk.head && !pipeline_->sends(chunk);
    if (hands_over) {
      handed_over_[{chunk.number + 1, action.micro_batch}] = place.residuals.back();
      place.residuals.back() = Place::kOutbox;  // the next chunk's now
    }

  } else if (schedule::makes_input_gradient(action.kind)) {
    if (place.gradient_in >= 0) residuals_.give_back(place.gradient_in);
    if (place.gradient_out >= 0) {
      gradients_handed_over_[{chunk.number - 1, action.micro_batch}] = place.gradient_out;
    }
    if (chunk.head) residuals_.give_back(std::exchange(place.residuals.back(), Place::kOutbox));
  }
  if (trains_ && !schedule::makes_weight_gradient(action.kind)) return;
  give_back(place);
  places_.erase(key);
}

void SlotBook::give_back(const Place& place) {
  for (const int slot : place.residuals) {
    if (slot != Place::kOutbox) residuals_.give_back(slot);
  }
  for (const int slot : place.waiting) waiting_.give_back(slot);
  for (const int slot : place.kept) {
    if (!one_set_for_all_ || slot > 0) kept_.give_back(slot);
  }
}

namespace {

SlotCounts counted_slots(const RankPipeline& pipeline, bool one_set_for_all) {
  SlotBook training(pipeline, one_set_for_all, true), pass(pipeline, one_set_for_all, false);
  for (const Action& action : pipeline.actions()) {
    if (!schedule::is_compute(action.kind)) continue;
    training.begin(action);
    training.end(action);
  }
  // Several under way need no more: what a chunk leaves for the next one of its rank is taken at
  // once (engine/schedule/forwards.h).
  for (const Chunk& chunk : pipeline.chunks) {
    const Action action{ActionKind::kForward, chunk.number, 0};
    pass.begin(action);
    pass.end(action);
  }
  return {std::max(training.num_residuals(), pass.num_residuals()),
          std::max(training.num_kept(), pass.num_kept()), training.num_waiting()};
}

/// Of one schedule, by place.
struct KnownSlots {
  struct OfPlace {
    std::vector<Chunk> chunks;
    bool one_set_for_all = false;
    SlotCounts counts;
  };
  std::weak_ptr<const schedule::Schedule> schedule;
  std::map<int, OfPlace> places;
};

}  // namespace

// The stages of ZeRO have the same schedule, so a plan of all asks for the same counts.
SlotCounts count_slots(const RankPipeline& pipeline, bool one_set_for_all) {
  thread_local KnownSlots known;
  if (known.schedule.lock() != pipeline.plan.schedule) known = {pipeline.plan.schedule, {}};
  KnownSlots::OfPlace& of_place = known.places[pipeline.place];
  if (of_place.chunks != pipeline.chunks || of_place.one_set_for_all != one_set_for_all) {
    of_place = {pipeline.chunks, one_set_for_all, counted_slots(pipeline, one_set_for_all)};
  }
  return of_place.counts;
}

std::optional<model::ModelPart> model_part(const RankPipeline& pipeline,
                                           const TrainingOptions& options) {
  if (pipeline.whole()) return std::nullopt;
  const SlotCounts counts =
      count_slots(pipeline, options.model.recompute == model::Recompute::kFull);
  return model::ModelPart{.embedding = pipeline.has_embedding(),
                          .head = pipeline.has_head(),
                          .num_residuals = counts.residuals,
                          .num_kept = counts.kept,
                          .num_waiting = counts.waiting,
                          .gradients = options.precision.reduce};
}

}  // namespace sherd::engine
