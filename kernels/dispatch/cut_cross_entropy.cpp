#include "kernels/cut_cross_entropy.h"

#include <bit>

#include "kernels/check_teacher.h"
#include "kernels/check_tensor.h"
#include "kernels/cpu/cut_cross_entropy.h"
#include "kernels/cuda/cut_cross_entropy.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void run(Stream& stream, const char* label, const CutCrossEntropy& args,
         void (*kernel)(ThreadTeam&, const CutCrossEntropy&),
         void (*form)(Stream&, const CutCrossEntropy&),
         Launches (*launches)(const CutCrossEntropy&)) {
  SHERD_CHECK(args.tokens >= 1 && args.num_rows >= 1 && args.rows.first >= 0 &&
                  args.rows.first + args.num_rows <= args.rows.all,
              "cut cross-entropy: {} tokens, rows [{}, +{}) of {}", args.tokens, args.rows.first,
              args.num_rows, args.rows.all);
  SHERD_CHECK(args.rank >= 0 && args.rank < args.num_ranks, "rank {} of {}", args.rank,
              args.num_ranks);
  SHERD_CHECK(args.groups >= 1 && args.groups <= kMostSumGroups &&
                  std::has_single_bit(unsigned(args.groups)) &&
                  (args.groups == 1 || args.groups * args.rows_of_a_group >= args.num_rows),
              "{} groups of {} of {} rows", args.groups, args.rows_of_a_group, args.num_rows);
  check_tensor("cut cross-entropy: logits", args.logits, args.logits.dtype,
               args.tokens * args.num_rows);
  check_tensor("cut cross-entropy: targets", args.targets, DType::kI32, args.tokens);
  check_tensor("cut cross-entropy: maxima", args.maxima, DType::kF32, args.num_ranks * args.tokens);
  check_tensor("cut cross-entropy: sums", args.sums, DType::kF32, args.num_sums() * args.tokens);
  check_tensor("cut cross-entropy: losses", args.losses, DType::kF32, args.tokens);
  if (args.z_loss) {
    check_tensor("cut cross-entropy: z-losses", args.z_loss.losses, DType::kF32, args.tokens);
  }
  if (args.weights) {
    check_tensor("cut cross-entropy: weights", args.weights, DType::kF32, args.tokens);
  }
  check_teacher(args.teacher, args.tokens);
  SHERD_CHECK(!args.teacher || (args.gradient && !args.weights && !args.z_loss),
              "cut cross-entropy: a teacher without a gradient, or with weights or a z-loss");
  if (is_cuda(stream)) return on_gpu(stream, form, launches, args);
  stream.run(label, [=, &stream] { kernel(stream.team(), args); });
}

}  // namespace

void logit_maxima(Stream& stream, const CutCrossEntropy& args) {
  run(stream, "logit_maxima", args, cpu::logit_maxima, cuda::logit_maxima, launches::logit_maxima);
}

void exponential_sums(Stream& stream, const CutCrossEntropy& args) {
  run(stream, "exponential_sums", args, cpu::exponential_sums, cuda::exponential_sums,
      launches::exponential_sums);
}

void cut_cross_entropy(Stream& stream, const CutCrossEntropy& args) {
  run(stream, "cut_cross_entropy", args, cpu::cut_cross_entropy, cuda::cut_cross_entropy,
      launches::cut_cross_entropy);
}

}  // namespace sherd::kernels
