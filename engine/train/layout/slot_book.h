/// Which slots hold a micro-batch's activations, on a rank with several micro-batches in flight.
///
/// A forward takes a residual-stream slot for the input of each of its blocks, and for each block a
/// set of kept activations; the backward frees them. Between the two halves of a backward, each
/// block has a slot for what its weight gradients still need. With `full` recompute it also has a
/// set of recomputed activations. Any block of any micro-batch may use any slot, so a rank needs as
/// many as are in use at a time, whatever its chunks' sizes. Slots are assigned in the order of the
/// rank's actions, lowest first. The plan counts the slots that the run will take.
///
///   chunk's last output   goes to
///     next chunk on another rank   an outbox (engine/train/pipeline/channels.h)
///     next chunk on this rank      the slot before the next chunk's first block
///     last block of the model      a slot of its own
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/model/part.h"
#include "engine/train/layout/pipeline_plan.h"

namespace sherd::engine {

class SlotBook {
 public:
  /// Slot indices.
  struct Place {
    static constexpr int kOutbox = model::Standing::kElsewhere;
    std::vector<int> residuals;  ///< before each block, and after the last: or kOutbox
    std::vector<int> kept;       ///< of each block
    std::vector<int> waiting{};  ///< of each block, from a backward's first half to its second
    /// Slots for gradients between two chunks of one rank: of the chunk's output, and of its input.
    /// -1: the gradient comes from a message or the head, and goes into a message or nowhere.
    int gradient_in = -1, gradient_out = -1;
  };

  /// `trains`: a backward follows. Otherwise a forward's slots are free after it.
  SlotBook(const RankPipeline& pipeline, bool one_set_for_all, bool trains);

  /// A forward, backward or half of one begins, or ends.
  const Place& begin(const schedule::Action& action);
  void end(const schedule::Action& action);

  /// The most slots needed at a time.
  int num_residuals() const { return residuals_.size(); }
  int num_kept() const { return kept_.size(); }
  int num_waiting() const { return waiting_.size(); }

 private:
  class Slots {
   public:
    int take();
    void give_back(int slot) { free_.insert(slot); }
    int size() const { return size_; }

   private:
    std::set<int> free_;
    int size_ = 0;
  };
  using Key = std::pair<int, int>;  // chunk, micro-batch

  Place make_place(const Chunk& chunk, int micro_batch);
  void give_back(const Place& place);

  const RankPipeline* pipeline_;
  bool one_set_for_all_, trains_;
  Slots residuals_, kept_, waiting_;
  std::map<Key, Place> places_;
  std::map<Key, int> handed_over_;            // outputs that are the input of a chunk of this rank
  std::map<Key, int> gradients_handed_over_;  // the same of gradients
};

/// Slots that the rank's list and an evaluation's passes need.
struct SlotCounts {
  int residuals = 0, kept = 0, waiting = 0;
};
SlotCounts count_slots(const RankPipeline& pipeline, bool one_set_for_all);

/// The rank's part and its slots; null: it has the whole model.
std::optional<model::ModelPart> model_part(const RankPipeline& pipeline,
                                           const TrainingOptions& options);

}  // namespace sherd::engine
