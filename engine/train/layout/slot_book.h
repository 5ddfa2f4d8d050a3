/// Which slots a micro-batch's activations stand in, on a rank that has several under way.
///
/// A forward takes a slot of the residual stream before each of its blocks, and a set of what a block
/// keeps for each; the backward gives them back. Between the halves of a backward each block has a slot for
/// what its weight gradients still need, and with `full` recompute a set of what was computed again. Any block
/// of any micro-batch may have any slot, so a rank needs as many as are in use at a time, whatever its chunks'
/// sizes. They are handed out in the order of the rank's actions, the lowest first: the plan counts what the
/// run will take.
///
///   chunk's last output   goes to   an outbox (engine/train/pipeline/channels.h), where the next chunk is another
///                                    rank's; the slot before the next chunk's first block, where it is this
///                                    rank's; a slot of its own behind the last block of the model
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
  /// Numbers of slots.
  struct Place {
    static constexpr int kOutbox = model::Standing::kElsewhere;
    std::vector<int> residuals;  ///< before each block, and behind the last: or kOutbox
    std::vector<int> kept;       ///< of each block
    std::vector<int> waiting{};  ///< of each block, from a backward's first half to its second
    /// Where the gradient waits between two chunks of one rank: of the chunk's output, and of its input. -1:
    /// it comes from a message, or from the head; it goes into one, or nowhere.
    int gradient_in = -1, gradient_out = -1;
  };

  /// `trains`: a backward follows. Otherwise a forward's slots are free behind it.
  SlotBook(const RankPipeline& pipeline, bool one_set_for_all, bool trains);

  /// A forward, backward or half of one begins, or ends.
  const Place& begin(const schedule::Action& action);
  void end(const schedule::Action& action);

  /// How many have been needed at a time.
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

/// What the rank's list needs, and an evaluation's passes.
struct SlotCounts {
  int residuals = 0, kept = 0, waiting = 0;
};
SlotCounts count_slots(const RankPipeline& pipeline, bool one_set_for_all);

/// What the rank has room for; null: it has the whole model.
std::optional<model::ModelPart> model_part(const RankPipeline& pipeline,
                                           const TrainingOptions& options);

}  // namespace sherd::engine
