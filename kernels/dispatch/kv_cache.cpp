#include "kernels/kv_cache.h"

#include "core/thread_team.h"
#include "kernels/check_tensor.h"
#include "kernels/cpu/attention/kv_cache.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {

void cached_attention(Stream& stream, const CachedAttention& args) {
  const AttentionShape& shape = args.shape;
  SHERD_CHECK(shape.sequences == 1 && args.first >= 0 && args.count >= 1 &&
                  args.first + args.count <= shape.positions,
              "{} sequences; positions {} to {} of {}", shape.sequences, args.first,
              args.first + args.count, shape.positions);
  SHERD_CHECK(args.qkv.numel == args.count * shape.packed_width() &&
                  args.out.numel == args.count * shape.query_heads * shape.head_width &&
                  args.out.dtype == args.qkv.dtype,
              "qkv [{}], out [{}] for {} tokens", args.qkv.numel, args.out.numel, args.count);
  SHERD_CHECK(args.cache.dtype == DType::kF32 && args.cache.numel == kv_cache_numel(shape),
              "a cache of {} elements, {} expected", args.cache.numel, kv_cache_numel(shape));
  if (args.sinks) check_tensor("sinks", args.sinks, args.qkv.dtype, shape.query_heads);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::cached_attention, launches::cached_attention, args);
  stream.run("cached_attention", [&stream, args] { cpu::cached_attention(stream.team(), args); });
}

std::int64_t kv_cache_numel(const AttentionShape& shape) {
  return cpu::kv_cache_floats(shape);
}

std::int64_t cached_attention_workspace_bytes(const AttentionShape& shape,
                                              const ComputeDevice& device) {
  if (device.kind == DeviceKind::kCuda) return 0;
  return device.num_threads * 4 * cpu::cached_attention_scratch_floats(shape);
}

}  // namespace sherd::kernels
