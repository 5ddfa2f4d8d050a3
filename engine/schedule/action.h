/// One action in a rank's list for a pipeline-parallel training step.
///
/// A *chunk* is consecutive units of the model on one pipeline rank, numbered in the order of the
/// model. An action names a chunk and, usually, a micro-batch. Its text form is that of PyTorch's
/// pipeline schedules: chunk, kind, micro-batch.
///
///   text        action
///   2F5         forward of chunk 2 on micro-batch 5
///   2B5         backward: input gradients and weight gradients
///   2I5, 2W5    the two halves of it separately
///   2SEND_F5    the chunk's output goes to the rank of chunk 3
///   2RECV_F5    its input comes from the rank of chunk 1
///   2SEND_B5    the gradient of its input goes to the rank of chunk 1
///   2RECV_B5    the gradient of its output comes from the rank of chunk 3
///   2GATHER     the chunk's parameters become full (ZeRO stage 3)
///   2RELEASE    the full parameters may be freed
///   2REDUCE5    its gradients of micro-batch 5 are added over the ranks that share its state
///   2REDUCE     the same for the gradients of the whole step
///   (2F5+6B1)   both at once: one computes while the other communicates inside its layers
///
/// Sends, gathers and reductions are started and overlap the following actions; a receive waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sherd::schedule {

enum class ActionKind : std::uint32_t {
  kForward,
  kBackward,
  kInputGradient,
  kWeightGradient,
  kSendActivations,
  kReceiveActivations,
  kSendGradients,
  kReceiveGradients,
  kGather,
  kRelease,
  kReduce,
};

inline constexpr int kNoMicroBatch = -1;

/// Stored in 8 bytes: a step of a long pipeline has tens of millions.
struct Action {
  ActionKind kind : 4;
  int chunk : 28;
  int micro_batch : 31;
  bool overlaps_next : 1;  ///< runs together with the next action of the list

  Action(ActionKind action, int of_chunk, int of_micro_batch = kNoMicroBatch, bool pair = false)
      : kind(action), chunk(of_chunk), micro_batch(of_micro_batch), overlaps_next(pair) {}

  bool operator==(const Action&) const = default;
};
static_assert(sizeof(Action) == 8);

/// Forward, backward or half of a backward: the actions that occupy the compute stream.
constexpr bool is_compute(ActionKind kind) {
  return kind <= ActionKind::kWeightGradient;
}
constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivations || kind == ActionKind::kSendGradients;
}
constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveActivations || kind == ActionKind::kReceiveGradients;
}
/// Backward or input gradient: the actions that compute the gradient for the previous chunk.
constexpr bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
}
/// Backward or weight gradient: the actions that add to the chunk's gradients.
constexpr bool makes_weight_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient;
}

/// "2F5"; a pair is two actions.
std::string text_of(const Action& action);
/// Parses the text of an action; nothing if it isn't one.
std::optional<Action> action_from(std::string_view word);

}  // namespace sherd::schedule
