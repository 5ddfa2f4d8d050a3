#include "engine/schedule/peaks.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::schedule {
namespace {

class Alive {
 public:
  // A pair's forward comes first, so that what both hold together is counted.
  void take(const Action& action, const SlotSizes& sizes) {
    if (action.kind == ActionKind::kForward) {
      now_.activations += sizes.activations;
      now_.kept += sizes.activations;
    } else if (action.kind == ActionKind::kInputGradient) {
      now_.waiting += sizes.waiting;
    }
    peak_.activations = std::max(peak_.activations, now_.activations);
    peak_.waiting = std::max(peak_.waiting, now_.waiting);
    peak_.kept = std::max(peak_.kept, now_.kept);

    if (makes_input_gradient(action.kind)) now_.activations -= sizes.activations;
    if (makes_weight_gradient(action.kind)) now_.kept -= sizes.activations;
    if (action.kind == ActionKind::kWeightGradient) now_.waiting -= sizes.waiting;
  }

  const Peak& peak() const { return peak_; }

 private:
  Peak now_, peak_;
};

}  // namespace

std::vector<Peak> peaks_by_rank(const Schedule& schedule, const std::vector<SlotSizes>& sizes) {
  SHERD_CHECK(sizes.empty() || std::ssize(sizes) == schedule.layout.num_chunks(),
              "sizes of {} chunks for {}", sizes.size(), schedule.layout.num_chunks());
  const auto size_of = [&](const Action& action) {
    return sizes.empty() ? SlotSizes{} : sizes[static_cast<std::size_t>(action.chunk)];
  };
  std::vector<Peak> peaks;
  for (const std::vector<Action>& actions : schedule.ranks) {
    Alive alive;
    for (const Action& action : actions) alive.take(action, size_of(action));
    peaks.push_back(alive.peak());
  }
  return peaks;
}

std::vector<Peak> peaks_by_chunk(const Schedule& schedule) {
  std::vector<Alive> alive(static_cast<std::size_t>(schedule.layout.num_chunks()));
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions)
      alive[static_cast<std::size_t>(action.chunk)].take(action, {});
  }
  std::vector<Peak> peaks;
  for (const Alive& chunk : alive) peaks.push_back(chunk.peak());
  return peaks;
}

}  // namespace sherd::schedule
