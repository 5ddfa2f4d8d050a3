// The gate of a shared expert: kernels/experts.h.

#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/experts/expert_round.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kColumns = 128;  // of a task that adds up tokens

}  // namespace

void gate_logits(ThreadTeam& team, const GateLogits& args) {
  const std::int64_t D = args.width;
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    parallel_rows(team, args.tokens, D, [&](std::int64_t t) {
      args.logits.as<float>()[t] = dot_row(args.gate.as<T>(), args.x.as<T>() + t * D, D);
    });
  });
}

void gate_forward(ThreadTeam& team, const GateForward& args) {
  const std::int64_t D = args.width;
  dispatch_float(args.y.dtype, [&]<class T>(T) {
    parallel_rows(team, args.tokens, D, [&](std::int64_t t) {
      scale_row(args.shared.as<T>() + t * D, D, fast_sigmoid(args.logits.as<float>()[t]),
                args.y.as<T>() + t * D);
    });
  });
}

void gate_backward(ThreadTeam& team, const GateBackward& args) {
  const std::int64_t D = args.width;
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    parallel_rows(team, args.tokens, D, [&](std::int64_t t) {
      const float s = fast_sigmoid(args.logits.as<float>()[t]);
      const T* dy = args.dy.as<T>() + t * D;
      const float d_logit = s * (1.0f - s) * dot_row(dy, args.shared.as<T>() + t * D, D);
      args.d_logits.as<float>()[t] = d_logit;
      scale_row(dy, D, s, args.d_shared.as<T>() + t * D);
      if (!args.d_x) return;
      for_each_block(0, D, [&](std::int64_t first, int n) {
        alignas(64) float gate[kBlock];
        widen(args.gate.as<T>() + first, gate, n);
        float* d_x = args.d_x.as<float>() + t * D + first;
#pragma omp simd
        for (int i = 0; i < n; ++i) d_x[i] += d_logit * gate[i];
      });
    });
  });
}

void gate_weight_gradient(ThreadTeam& team, const GateWeightGradient& args) {
  const std::int64_t D = args.width;
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    dispatch_float(args.d_gate.dtype, [&]<class R>(R) {
      team.parallel_for((D + kColumns - 1) / kColumns, [&](std::int64_t task, int) {
        const std::int64_t first = task * kColumns, count = std::min(kColumns, D - first);
        float sum[kColumns] = {}, x[kColumns];
        for (std::int64_t t = 0; t < args.tokens; ++t) {
          widen(args.x.as<T>() + t * D + first, x, count);
          const float d_logit = args.d_logits.as<float>()[t];
#pragma omp simd
          for (std::int64_t i = 0; i < count; ++i) sum[i] += d_logit * x[i];
        }
        R* out = args.d_gate.as<R>() + first;
        args.add ? add_narrowed(sum, out, count) : narrow(sum, out, count);
      });
    });
  });
}

}  // namespace sherd::kernels::cpu
