/// What a rank does in a training step that is divided among ranks by layers: one action of its list.
///
/// A *chunk* is consecutive units of the model on one pipeline rank, numbered in the order of the
/// model. An action names a chunk and, mostly, a micro-batch. Its text form is the one that PyTorch's
/// pipeline schedules have: chunk, kind, micro-batch.
///
///   text        action
///   2F5         forward of chunk 2 on micro-batch 5
///   2B5         backward: input gradients and weight gradients
///   2I5, 2W5    the two halves of it apart
///   2SEND_F5    the chunk's output goes to the rank of chunk 3
///   2RECV_F5    its input comes from the rank of chunk 1
///   2SEND_B5    the gradient of its input goes to the rank of chunk 1
///   2RECV_B5    the gradient of its output comes from the rank of chunk 3
///   2GATHER     the chunk's parameters become full (ZeRO stage 3)
///   2RELEASE    they needn't stay full
///   2REDUCE5    its gradients of micro-batch 5 are added over the ranks that share its state
///   2REDUCE     those of the whole step are
///   (2F5+6B1)   both at once: one computes while the other communicates inside its layers
///
/// Sends, gathers and reductions are started and go on beside the following actions; a receive waits.
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

/// In 8 bytes: the step of a long pipeline has tens of millions.
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

/// Forward, backward or a half of it: what occupies the compute stream.
constexpr bool is_compute(ActionKind kind) {
  return kind <= ActionKind::kWeightGradient;
}
constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivations || kind == ActionKind::kSendGradients;
}
constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveActivations || kind == ActionKind::kReceiveGradients;
}
/// Backward or input gradient: what makes the gradient that the chunk before needs.
constexpr bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
}
/// Backward or weight gradient: what adds to the chunk's gradients.
constexpr bool makes_weight_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient;
}

/// "2F5"; a pair is two of them.
std::string text_of(const Action& action);
/// The action that `word` is the text of, if any.
std::optional<Action> action_from(std::string_view word);

}  // namespace sherd::schedule
