#include "kernels/token.h"

#include "core/thread_team.h"
#include "kernels/check_teacher.h"
#include "kernels/check_tensor.h"
#include "kernels/cpu/token.h"
#include "kernels/device.h"
#include "kernels/device_common/token.h"
#include "kernels/interleaved.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check_rows(const VocabularyRows& rows, std::int64_t num_rows) {
  SHERD_CHECK(rows.all == 0 || (rows.first >= 0 && rows.first + num_rows <= rows.all),
              "rows [{}, +{}) of a vocabulary of {}", rows.first, num_rows, rows.all);
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  const std::int64_t tokens = args.sequences * args.positions;
  SHERD_CHECK(tokens >= 1 && args.width >= 1 && args.vocab_size >= 1,
              "embedding: {} x {} tokens of {}", args.sequences, args.positions, args.width);
  check_tensor("embedding: tokens", args.tokens, DType::kI32, tokens);
  check_tensor("embedding: y", args.y, args.y.dtype, tokens * args.width);
  check_tensor("embedding: token_weight", args.token_weight, args.y.dtype,
               args.vocab_size * args.width);
  SHERD_CHECK(!args.position_weight || (args.position_weight.dtype == args.y.dtype &&
                                        args.position_weight.numel >= args.positions * args.width),
              "embedding: position_weight has {} elements, {} positions of width {}",
              args.position_weight.numel, args.positions, args.width);
  check_rows(args.rows, args.vocab_size);
  SHERD_CHECK(!args.interleaved || (!is_cuda(stream) && can_interleave(args.y.dtype, args.width)),
              "embedding: interleaved {} of width {}", name_of(args.y.dtype), args.width);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::embedding_forward, launches::embedding_forward, args);
  stream.run("embedding_forward", [&stream, args] { cpu::embedding_forward(stream.team(), args); });
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  const std::int64_t tokens = args.sequences * args.positions;
  SHERD_CHECK(tokens >= 1 && args.width >= 1 && args.vocab_size >= 1,
              "embedding: {} x {} tokens of {}", args.sequences, args.positions, args.width);
  check_tensor("embedding: tokens", args.tokens, DType::kI32, tokens);
  check_tensor("embedding: dy", args.dy, args.dy.dtype, tokens * args.width);
  check_tensor("embedding: d_token_weight", args.d_token_weight, args.d_token_weight.dtype,
               args.vocab_size * args.width);
  if (args.d_position_weight) {
    SHERD_CHECK(args.position_rows >= args.positions,
                "embedding: {} position rows for {} positions", args.position_rows, args.positions);
    check_tensor("embedding: d_position_weight", args.d_position_weight,
                 args.d_position_weight.dtype, args.position_rows * args.width);
  }
  check_rows(args.rows, args.vocab_size);
  if (args.groups) {
    check_token_groups(args.groups, tokens);
    SHERD_CHECK(args.groups.groups <= kMostTokenGroups && !args.add_to_token_gradient &&
                    args.d_token_weight.dtype == DType::kF32,
                "embedding: a tree over {} groups that is rounded, or added to",
                args.groups.groups);
  }
  if (is_cuda(stream)) {
    SHERD_CHECK(!args.groups, "embedding: a tree over tokens on a GPU");
    return on_gpu(stream, cuda::embedding_backward, launches::embedding_backward, args);
  }
  stream.run("embedding_backward",
             [&stream, args] { cpu::embedding_backward(stream.team(), args); });
}

std::int64_t embedding_backward_workspace_bytes(std::int64_t tokens, std::int64_t vocab_size,
                                                const ComputeDevice& device) {
  if (device.kind == DeviceKind::kCuda) return device_common::token_order_bytes(tokens);
  return cpu::embedding_backward_workspace_bytes(tokens, vocab_size);
}

void cross_entropy(Stream& stream, const CrossEntropy& args) {
  SHERD_CHECK(args.tokens >= 1 && args.vocab_size >= 1, "cross_entropy: {} tokens, {} classes",
              args.tokens, args.vocab_size);
  check_tensor("cross_entropy: logits", args.logits, args.logits.dtype,
               args.tokens * args.vocab_size);
  check_tensor("cross_entropy: targets", args.targets, DType::kI32, args.tokens);
  check_tensor("cross_entropy: losses", args.losses, DType::kF32, args.tokens);
  if (args.z_loss) {
    check_tensor("cross_entropy: z-losses", args.z_loss.losses, DType::kF32, args.tokens);
  }
  if (args.weights) {
    check_tensor("cross_entropy: weights", args.weights, DType::kF32, args.tokens);
  }
  check_teacher(args.teacher, args.tokens);
  SHERD_CHECK(!args.teacher || (args.gradient && !args.weights && !args.z_loss),
              "cross_entropy: a teacher without a gradient, or with weights or a z-loss");
  if (is_cuda(stream)) return on_gpu(stream, cuda::cross_entropy, launches::cross_entropy, args);
  stream.run("cross_entropy", [&stream, args] { cpu::cross_entropy(stream.team(), args); });
}

void shape_logits(Stream& stream, const LogitsForm& form, Tensor logits) {
  if (form.is_neutral()) return;
  if (is_cuda(stream))
    return on_gpu(stream, cuda::shape_logits, launches::shape_logits, form, logits);
  stream.run("shape_logits", [=, &stream] { cpu::shape_logits(stream.team(), form, logits); });
}

}  // namespace sherd::kernels
