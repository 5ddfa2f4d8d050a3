#include "engine/schedule/rank_rules.h"

#include <fmt/core.h>

#include <vector>

#include "core/error.h"

namespace sherd::schedule {
namespace {

// What is wrong, or nothing.
using Problem = std::optional<std::string>;

struct Done {
  bool received_input = false, forward = false, sent_output = false;
  bool received_gradient = false, input_gradient = false, sent_gradient = false;
};

struct ChunkState {
  std::vector<Done> done;  // per micro-batch
  int num_weight_gradients = 0;
  int num_reductions = 0;
  bool gathered = false;
};

// A rank's list, action by action.
class RankRules {
 public:
  RankRules(const Schedule& schedule, int rank, int most_activations)
      : schedule_(schedule),
        layout_(schedule.layout),
        rank_(rank),
        most_activations_(most_activations),
        chunks_(index(layout_.chunks_per_rank)) {
    for (ChunkState& chunk : chunks_) chunk.done.resize(index(schedule.num_micro_batches));
  }

  Problem take(const Action& action) {
    if (Problem problem = place(action)) return problem;
    switch (action.kind) {
      case ActionKind::kForward:
        return forward(action);
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        return backward(action);
      case ActionKind::kWeightGradient:
        return weight_gradient(action);
      case ActionKind::kSendActivations:
      case ActionKind::kSendGradients:
        return send(action);
      case ActionKind::kReceiveActivations:
      case ActionKind::kReceiveGradients:
        return receive(action);
      case ActionKind::kGather:
      case ActionKind::kRelease:
        return gather_or_release(action);
      case ActionKind::kReduce:
        return reduce(action);
    }
    return std::nullopt;
  }

  Problem pair(const Action& first, const Action* second) const {
    if (!second || first.kind != ActionKind::kForward || second->kind != ActionKind::kBackward ||
        second->overlaps_next) {
      return "only a forward and the backward after it can run together";
    }
    if (first.chunk == second->chunk && first.micro_batch == second->micro_batch) {
      return "a backward can't run together with its own forward";
    }
    return std::nullopt;
  }

  Problem missing() const {
    for (const int chunk : layout_.chunks_of(rank_)) {
      const ChunkState& state = chunk_state(chunk);
      for (int i = 0; i < schedule_.num_micro_batches; ++i) {
        if (Problem problem = missing(chunk, i, state.done[index(i)])) return problem;
      }
      if (state.num_weight_gradients < schedule_.num_micro_batches) {
        return fmt::format("{}W{} is missing", chunk, state.num_weight_gradients);
      }
      if (state.num_reductions < expected_reductions()) {
        return schedule_.reduces == Reduces::kPerStep
                   ? fmt::format("{}REDUCE is missing", chunk)
                   : fmt::format("{}REDUCE{} is missing", chunk, state.num_reductions);
      }
      if (state.gathered) return fmt::format("{}RELEASE is missing", chunk);
    }
    return std::nullopt;
  }

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  bool receives_input(int chunk) const { return chunk > 0 && layout_.crosses_after(chunk - 1); }
  // Of a chunk of this rank.
  ChunkState& chunk_state(int chunk) { return chunks_[index(layout_.local_index(chunk))]; }
  const ChunkState& chunk_state(int chunk) const {
    return chunks_[index(layout_.local_index(chunk))];
  }
  Done& done(const Action& action) {
    return chunk_state(action.chunk).done[index(action.micro_batch)];
  }
  int expected_reductions() const {
    if (schedule_.reduces == Reduces::kNever) return 0;
    return schedule_.reduces == Reduces::kPerStep ? 1 : schedule_.num_micro_batches;
  }

  Problem place(const Action& action) const {
    if (action.chunk < 0 || action.chunk >= layout_.num_chunks()) {
      return fmt::format("there are chunks 0 to {}", layout_.last_chunk());
    }
    if (const int owner = layout_.rank_of(action.chunk); owner != rank_) {
      return fmt::format("chunk {} is on rank {}", action.chunk, owner);
    }
    const bool names_none =
        action.kind == ActionKind::kGather || action.kind == ActionKind::kRelease ||
        (action.kind == ActionKind::kReduce && schedule_.reduces != Reduces::kPerMicroBatch);
    if (names_none) {
      if (action.micro_batch == kNoMicroBatch) return std::nullopt;
      return "it is for all micro-batches together and names none";
    }
    if (action.micro_batch >= 0 && action.micro_batch < schedule_.num_micro_batches) {
      return std::nullopt;
    }
    return fmt::format("it names a micro-batch from 0 to {}", schedule_.num_micro_batches - 1);
  }

  Problem needs_parameters(int chunk) const {
    if (!schedule_.gathers || chunk_state(chunk).gathered) return std::nullopt;
    return fmt::format("the parameters of chunk {} aren't gathered", chunk);
  }

  Problem forward(const Action& action) {
    const auto [kind, chunk, micro_batch, pair] = action;
    Done& own = done(action);
    if (own.forward) return "this forward has already run";
    if (receives_input(chunk) && !own.received_input) {
      return fmt::format("its input comes with {}RECV_F{}, which hasn't run yet", chunk,
                         micro_batch);
    }
    if (chunk > 0 && !receives_input(chunk) &&
        !chunk_state(chunk - 1).done[index(micro_batch)].forward) {
      return fmt::format("its input is made by {}F{}, which hasn't run yet", chunk - 1,
                         micro_batch);
    }
    if (Problem problem = needs_parameters(chunk)) return problem;
    own.forward = true;
    if (++num_activations_ > most_activations_) {
      return fmt::format("it is activation {} alive; {} are planned", num_activations_,
                         most_activations_);
    }
    return std::nullopt;
  }

  Problem backward(const Action& action) {
    const auto [kind, chunk, micro_batch, pair] = action;
    Done& own = done(action);
    if (own.input_gradient) return "this micro-batch's backward has already run";
    if (!own.forward) return fmt::format("{}F{} hasn't run yet", chunk, micro_batch);
    if (layout_.crosses_after(chunk) && !own.received_gradient) {
      return fmt::format("its gradient comes with {}RECV_B{}, which hasn't run yet", chunk,
                         micro_batch);
    }
    if (chunk < layout_.last_chunk() && !layout_.crosses_after(chunk) &&
        !chunk_state(chunk + 1).done[index(micro_batch)].input_gradient) {
      return fmt::format("its gradient is made by the backward of chunk {}, which hasn't run yet",
                         chunk + 1);
    }
    if (Problem problem = needs_parameters(chunk)) return problem;
    own.input_gradient = true;
    --num_activations_;
    return kind == ActionKind::kBackward ? next_weight_gradient(action) : std::nullopt;
  }

  Problem weight_gradient(const Action& action) {
    if (action.micro_batch < chunk_state(action.chunk).num_weight_gradients) {
      return "this weight gradient has already run";
    }
    if (!done(action).input_gradient) {
      return fmt::format("{}I{} hasn't run yet", action.chunk, action.micro_batch);
    }
    return next_weight_gradient(action);
  }

  Problem next_weight_gradient(const Action& action) {
    ChunkState& state = chunk_state(action.chunk);
    int& next = state.num_weight_gradients;
    if (action.micro_batch != next) {
      return fmt::format("weight gradients of a chunk ascend, and {}W{} is next", action.chunk,
                         next);
    }
    // Both are written to the same buffer.
    if (schedule_.reduces == Reduces::kPerMicroBatch && state.num_reductions < next) {
      return fmt::format("{}REDUCE{} comes first", action.chunk, next - 1);
    }
    ++next;
    return std::nullopt;
  }

  Problem send(const Action& action) {
    const bool gradients = action.kind == ActionKind::kSendGradients;
    const bool crosses =
        gradients ? receives_input(action.chunk) : layout_.crosses_after(action.chunk);
    if (!crosses) return "no rank receives it";
    Done& own = done(action);
    if (!(gradients ? own.input_gradient : own.forward))
      return "what it sends hasn't been computed yet";
    bool& sent = gradients ? own.sent_gradient : own.sent_output;
    if (sent) return "it was sent before";
    sent = true;
    return std::nullopt;
  }

  Problem receive(const Action& action) {
    const bool gradients = action.kind == ActionKind::kReceiveGradients;
    const bool crosses =
        gradients ? layout_.crosses_after(action.chunk) : receives_input(action.chunk);
    if (!crosses) return "no rank sends it";
    bool& received = gradients ? done(action).received_gradient : done(action).received_input;
    if (received) return "it was received before";
    received = true;
    return std::nullopt;
  }

  Problem gather_or_release(const Action& action) {
    if (!schedule_.gathers) return "nothing is gathered in this schedule";
    const bool gather = action.kind == ActionKind::kGather;
    bool& gathered = chunk_state(action.chunk).gathered;
    if (gathered == gather) {
      return gather ? "the chunk is gathered already" : "the chunk isn't gathered";
    }
    gathered = gather;
    return std::nullopt;
  }

  Problem reduce(const Action& action) {
    ChunkState& state = chunk_state(action.chunk);
    if (schedule_.reduces == Reduces::kNever) return "nothing is reduced in this schedule";
    if (schedule_.reduces == Reduces::kPerStep) {
      if (state.num_reductions > 0) return "the chunk was reduced before";
      if (state.num_weight_gradients < schedule_.num_micro_batches) {
        return fmt::format("{}W{} is still to come", action.chunk, state.num_weight_gradients);
      }
    } else {
      if (action.micro_batch != state.num_reductions) {
        return fmt::format("reductions of a chunk ascend, and {}REDUCE{} is next", action.chunk,
                           state.num_reductions);
      }
      if (state.num_weight_gradients <= action.micro_batch) {
        return fmt::format("{}W{} hasn't run yet", action.chunk, action.micro_batch);
      }
    }
    ++state.num_reductions;
    return std::nullopt;
  }

  Problem missing(int chunk, int micro_batch, const Done& done) const {
    const auto text = [&](const char* kind) {
      return fmt::format("{}{}{} is missing", chunk, kind, micro_batch);
    };
    if (!done.forward) return text("F");
    if (layout_.crosses_after(chunk) && !done.sent_output) return text("SEND_F");
    if (!done.input_gradient) return text("B");
    if (receives_input(chunk) && !done.sent_gradient) return text("SEND_B");
    return std::nullopt;
  }

  const Schedule& schedule_;
  const ChunkLayout& layout_;
  int rank_;
  int most_activations_;
  int num_activations_ = 0;
  std::vector<ChunkState> chunks_;  // the rank's own
};

}  // namespace

std::optional<Violation> rank_violation(const Schedule& schedule, int rank, const Rules& rules) {
  const std::vector<Action>& actions = schedule.ranks[static_cast<std::size_t>(rank)];
  const int most = rules.most_activations.empty()
                       ? schedule.num_micro_batches * schedule.layout.chunks_per_rank
                       : rules.most_activations[static_cast<std::size_t>(rank)];
  RankRules state(schedule, rank, most);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    Problem problem;
    if (actions[i].overlaps_next) {
      problem = state.pair(actions[i], i + 1 < actions.size() ? &actions[i + 1] : nullptr);
    }
    if (!problem) problem = state.take(actions[i]);
    if (!problem) continue;
    return Violation{rank, static_cast<int>(i),
                     fmt::format("rank {} can't do {} at position {}: {}.", rank,
                                 text_of(actions[i]), i, *problem)};
  }
  if (const Problem problem = state.missing()) {
    return Violation{
        rank, static_cast<int>(actions.size()),
        fmt::format("rank {} ends at position {}: {}.", rank, actions.size(), *problem)};
  }
  return std::nullopt;
}

}  // namespace sherd::schedule
