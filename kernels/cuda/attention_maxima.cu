// The largest score of each head: kernels/attention.h, `maxima`. A block does 32 queries of one head;
// eight threads share a query, as in attention_tiles.cu.
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

extern __shared__ float shared_floats[];

template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_of_tile(const Arguments<T> a, unsigned int* maxima) {
  const AttentionLayout& at = a.at;
  const int K = static_cast<int>(at.K), pitch = K + 1;
  float* query = shared_floats;
  float* key = query + kTile * pitch;
  __shared__ TileSight seen;
  const QueryTile own(at, a.sight, seen);
  const AttentionTask task = own.task;
  load_queries(a, task.b, task.head, own.first_row, query);
  float largest = -device_common::kInfinity;
  for (std::int64_t k0 = own.first_tile_key; k0 < own.end_key; k0 += kTile) {
    __syncthreads();  // whoever still reads the last tile
    load_keys(a, task.b, own.g, k0, key);
    __syncthreads();
    float score[kOwnScores] = {};
    dot_rows(query + own.row * pitch, key + kOwnScores * own.lane * pitch, K, score);
    for (int j = 0; j < kOwnScores; ++j) {
      const float s = score[j] * a.scale;
      largest = own.sees(k0 + kOwnScores * own.lane + j) && s > largest ? s : largest;
    }
  }
  largest = row_maximum(largest);
  if (own.lane != 0 || largest == -device_common::kInfinity) return;
  atomicMax(maxima + task.head, ordered_word(device_common::bits_of(largest)));
}

}  // namespace

void attention_maxima(Stream& stream, const AttentionForward& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    const auto a = arguments_of<T>(args.shape, args);
    const std::int64_t bytes = 2 * kTile * (args.shape.head_width + 1) * 4;
    const auto kernel = largest_of_tile<T>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "attention_maxima");
    kernel<<<grid_of(a.at.num_query_tasks()), kThreads, static_cast<std::size_t>(bytes),
             handle_of(stream)>>>(a,
                                  reinterpret_cast<unsigned int*>(args.maxima.as<std::int32_t>()));
  });
  check_launch("attention_maxima");
}

}  // namespace sherd::kernels::cuda
