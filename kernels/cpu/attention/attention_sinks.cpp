// Attention sinks that join a softmax afterwards, and the gradient of sinks.
#include <cmath>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/attention_strip.h"
#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

template <class T>
double dot(const T* a, const T* b, std::int64_t width) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < width; ++i) {
    sum += static_cast<double>(static_cast<float>(a[i])) * static_cast<float>(b[i]);
  }
  return sum;
}

// Of one head, over all queries in the order of rows.
template <class T>
float head_gradient(const AttentionSinksGradient& args, std::int64_t h) {
  const AttentionShape& shape = args.shape;
  const std::int64_t H = shape.query_heads, K = shape.head_width, Q = shape.num_queries();
  const auto sink = static_cast<double>(static_cast<float>(args.sinks.as<T>()[h]));
  double sum = 0.0;
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    for (std::int64_t q = 0; q < Q; ++q) {
      const std::int64_t row = ((b * Q + q) * H + h) * K;
      const double lse = args.lse.as<float>()[(b * H + h) * Q + q];
      sum -= std::exp(sink - lse) * dot(args.dout.as<T>() + row, args.out.as<T>() + row, K);
    }
  }
  return static_cast<float>(sum);
}

}  // namespace

void join_attention_sinks(ThreadTeam& team, const AttentionJoinSinks& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t H = shape.query_heads, K = shape.head_width, Q = shape.num_queries();
  dispatch_float(args.out.dtype, [&]<class T>(T) {
    dispatch_float(args.sinks.dtype, [&]<class Sink>(Sink) {
      parallel_rows(team, shape.query_tokens(), H * K, [&](std::int64_t row) {
        for (std::int64_t h = 0; h < H; ++h) {
          float* lse = args.lse.as<float>() + (row / Q * H + h) * Q + row % Q;
          const float kept = join_sink(static_cast<float>(args.sinks.as<Sink>()[h]), lse);
          T* out = args.out.as<T>() + (row * H + h) * K;
          for (std::int64_t k = 0; k < K; ++k) {
            out[k] = static_cast<T>(kept * static_cast<float>(out[k]));
          }
        }
      });
    });
  });
}

void attention_sinks_gradient(ThreadTeam& team, const AttentionSinksGradient& args) {
  dispatch_float(args.out.dtype, [&]<class T>(T) {
    team.parallel_for(args.shape.query_heads, [&](std::int64_t h, int) {
      const float gradient = head_gradient<T>(args, h);
      dispatch_float(args.d_sinks.dtype,
                     [&]<class G>(G) { args.d_sinks.as<G>()[h] = static_cast<G>(gradient); });
    });
  });
}

}  // namespace sherd::kernels::cpu
