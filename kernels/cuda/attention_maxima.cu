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
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const AttentionTask task = at.query_task(blockIdx.x);
  const std::int64_t first_row = task.tile * kTile;
  const std::int64_t q0 = at.first_query + first_row, q = q0 + row, g = at.group_of(task.head);
  __shared__ TileSight seen;
  seen.look(a.sight, at.first_query + at.Q, task.b, q0);
  const std::int64_t first_key = seen.first_key[row], end_key = end_of_tile(at, first_row);
  const std::int64_t end_of_keys = at.end_of_keys();
  load_queries(a, task.b, task.head, first_row, query);
  float largest = -device_common::kInfinity;
  for (std::int64_t k0 = at.tile_with(seen.first()); k0 < end_key; k0 += kTile) {
    __syncthreads();  // whoever still reads the last tile
    load_keys(a, task.b, g, k0, key);
    __syncthreads();
    float score[kOwnScores] = {};
    dot_rows(query + row * pitch, key + kOwnScores * lane * pitch, K, score);
    for (int j = 0; j < kOwnScores; ++j) {
      const std::int64_t k = k0 + kOwnScores * lane + j;
      const bool is_seen = first_key <= k && k <= q && k < end_of_keys;
      const float s = score[j] * a.scale;
      largest = is_seen && s > largest ? s : largest;
    }
  }
  largest = row_maximum(largest);
  if (lane != 0 || largest == -device_common::kInfinity) return;
  atomicMax(maxima + task.head, ordered_word(device_common::bits_of(largest)));
}

}  // namespace

void attention_maxima(Stream& stream, const AttentionForward& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a{};
    a.at = AttentionLayout(args.shape, static_cast<bool>(args.keys_values));
    a.sight = Sight(args.shape, args.documents);
    a.scale = args.shape.score_scale();
    a.qkv = args.qkv.as<T>();
    a.keys_values = a.at.keys_apart ? args.keys_values.as<T>() : a.qkv;
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
