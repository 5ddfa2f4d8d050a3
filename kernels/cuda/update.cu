#include "kernels/update.h"

#include <algorithm>

#include "core/exact_sum.h"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/eight_bit_update.h"
#include "kernels/device_common/layerwise_update.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::SegmentTable;

template <int N, class Body>
__global__ void __launch_bounds__(device_common::kThreads)
    segment_kernel(const __grid_constant__ SegmentTable table, const Body work) {
  device_common::walk_segments<N>(table, blockIdx.x, static_cast<int>(threadIdx.x),
                                  static_cast<int>(blockDim.x), work);
}

struct EightBitMaps {
  EightBitMap of[2];  // first and second moments
};

template <class Body>
__global__ void __launch_bounds__(device_common::kEightBitThreads)
    eight_bit_kernel(const __grid_constant__ SegmentTable table,
                     const __grid_constant__ EightBitMaps maps, const Body work) {
  __shared__ EightBitMap shared[2];
  for (int i = static_cast<int>(threadIdx.x); i < 512; i += static_cast<int>(blockDim.x)) {
    const EightBitMap& from = maps.of[i / 256];
    EightBitMap& to = shared[i / 256];
    to.value[i % 256] = from.value[i % 256];
    if (i % 256 < 255) to.middle[i % 256] = from.middle[i % 256];
    if (i % 256 == 0) to.zero = from.zero;
    if (i % 256 == 0) to.keeps_positive = from.keeps_positive;
  }
  __syncthreads();
  device_common::walk_eight_bit_blocks(table, blockIdx.x, static_cast<int>(threadIdx.x),
                                       static_cast<int>(blockDim.x), shared, work);
}

// One block for one segment: two f64 sums over fixed threads, then over threads in a fixed order.
// Each is the f64 addend of an exact sum (core/exact_sum.h) whose digits are zero.
constexpr int kSumThreads = 1024;

template <class Body>
__global__ void __launch_bounds__(kSumThreads)
    segment_sums_kernel(const __grid_constant__ SegmentTable table, const Body work,
                        std::int64_t num_segments, double* out) {
  __shared__ double scratch[32];
  const device_common::Segment& segment = table.segment[blockIdx.x];
  double sum_a = 0.0, sum_b = 0.0;
  for (std::int64_t i = threadIdx.x; i < segment.count; i += kSumThreads) {
    float a, b;
    work.terms(segment, segment.first + i, a, b);
    sum_a += static_cast<double>(a) * a;
    sum_b += static_cast<double>(b) * b;
  }
  sum_a = block_sum(sum_a, scratch);
  sum_b = block_sum(sum_b, scratch);
  if (threadIdx.x == 0) {
    constexpr int kNumbers = ExactSum::kNumbers;
    out[blockIdx.x * kNumbers + kNumbers - 1] = sum_a;
    out[(num_segments + blockIdx.x) * kNumbers + kNumbers - 1] = sum_b;
  }
}

/// Calls `function(table, first segment)` for the segments, as many at a time as a launch carries.
template <class Function>
void for_each_table(std::span<const UpdateSegment> segments, std::span<const float> ratios,
                    Function&& function) {
  const std::size_t count = segments.size();
  for (std::size_t first = 0; first < count; first += device_common::kMaxSegments) {
    const std::size_t here = std::min<std::size_t>(device_common::kMaxSegments, count - first);
    function(
        device_common::make_segment_table(segments.subspan(first, here),
                                          ratios.empty() ? ratios : ratios.subspan(first, here)),
        first);
  }
}

/// Packs need every segment to start at a multiple of the pack, and so do the buffers.
template <int N, class Body, class... Pointers>
void launch_segments(Stream& stream, const char* kernel, const UpdateCommon& common,
                     std::span<const float> ratios, const Body& work, const Pointers*... buffers) {
  bool packs = device_common::allow_packs(buffers...);
  std::vector<UpdateSegment> joined;
  if (ratios.empty()) joined = device_common::join_neighbours(common.segments);
  const std::span<const UpdateSegment> segments = ratios.empty() ? joined : common.segments;
  for (const UpdateSegment& segment : segments) packs = packs && segment.first % N == 0;
  for_each_table(segments, ratios, [&](const SegmentTable& table, std::size_t) {
    if (table.num_blocks() == 0) return;
    const unsigned blocks = grid_of(table.num_blocks());
    if (packs) {
      segment_kernel<N><<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(table, work);
    } else {
      segment_kernel<1><<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(table, work);
    }
    check_launch(kernel);
  });
}

template <class Body>
void launch_in_8_bits(Stream& stream, const char* kernel, const UpdateCommon& common,
                      const Body& work) {
  const EightBitMaps maps = {{eight_bit_map(true), eight_bit_map(false)}};
  const std::vector<UpdateSegment> joined = device_common::join_neighbours(common.segments);
  for_each_table(joined, {}, [&](const SegmentTable& table, std::size_t) {
    if (table.num_blocks() == 0) return;
    eight_bit_kernel<<<grid_of(table.num_blocks()), device_common::kEightBitThreads, 0,
                       handle_of(stream)>>>(table, maps, work);
    check_launch(kernel);
  });
}

template <class Body>
void launch_sums(Stream& stream, const char* kernel, const UpdateCommon& common, const Body& work,
                 const Tensor& sums) {
  for_each_table(common.segments, {}, [&](const SegmentTable& table, std::size_t first) {
    segment_sums_kernel<<<static_cast<unsigned>(table.count), kSumThreads, 0, handle_of(stream)>>>(
        table, work, static_cast<std::int64_t>(common.segments.size()),
        sums.as<double>() + static_cast<std::int64_t>(first) * ExactSum::kNumbers);
    check_launch(kernel);
  });
}

/// Calls `function(G{}, S{})` with the types of the gradient and of the moments.
template <class Function>
void dispatch_update(const UpdateCommon& common, DType moment, Function&& function) {
  dispatch_float(common.gradient.dtype, [&](auto gradient_type) {
    if (moment == DType::kF32) {
      function(gradient_type, float{});
    } else {
      function(gradient_type, BFloat16{});
    }
  });
}

}  // namespace

void adam_update(Stream& stream, const AdamUpdate& args) {
  if (args.exp_avg.dtype == DType::kU8) {
    return dispatch_float(args.common.gradient.dtype, [&]<class G>(G) {
      launch_in_8_bits(stream, "adam_update", args.common, device_common::AdamIn8Bits<G>(args));
    });
  }
  dispatch_update(args.common, args.exp_avg.dtype, [&]<class G, class S>(G, S) {
    launch_segments<device_common::pack_of<G, S, float>()>(
        stream, "adam_update", args.common, {}, device_common::Adam<G, S>(args),
        args.common.parameter.data, args.common.gradient.data, args.exp_avg.data,
        args.exp_avg_sq.data, args.common.rounded.data);
  });
}

void sgd_update(Stream& stream, const SgdUpdate& args) {
  dispatch_update(args.common, args.momentum_buffer.dtype, [&]<class G, class S>(G, S) {
    launch_segments<device_common::pack_of<G, S, float>()>(
        stream, "sgd_update", args.common, {}, device_common::Sgd<G, S>(args),
        args.common.parameter.data, args.common.gradient.data, args.momentum_buffer.data,
        args.common.rounded.data);
  });
}

void lion_update(Stream& stream, const LionUpdate& args) {
  if (args.exp_avg.dtype == DType::kU8) {
    return dispatch_float(args.common.gradient.dtype, [&]<class G>(G) {
      launch_in_8_bits(stream, "lion_update", args.common, device_common::LionIn8Bits<G>(args));
    });
  }
  dispatch_update(args.common, args.exp_avg.dtype, [&]<class G, class S>(G, S) {
    launch_segments<device_common::pack_of<G, S, float>()>(
        stream, "lion_update", args.common, {}, device_common::Lion<G, S>(args),
        args.common.parameter.data, args.common.gradient.data, args.exp_avg.data,
        args.common.rounded.data);
  });
}

void muon_momentum(Stream& stream, const MuonUpdate& args) {
  dispatch_update(args.common, args.momentum_buffer.dtype, [&]<class G, class S>(G, S) {
    launch_segments<device_common::pack_of<G, S, float>()>(
        stream, "muon_momentum", args.common, {}, device_common::MuonMomentum<G, S>(args),
        args.common.gradient.data, args.momentum_buffer.data, args.update.data);
  });
}

void muon_apply(Stream& stream, const MuonUpdate& args, std::span<const float> ratios) {
  launch_segments<device_common::pack_of<float>()>(stream, "muon_apply", args.common, ratios,
                                                   device_common::MuonApply(args),
                                                   args.common.parameter.data, args.update.data);
}

void lamb_moments(Stream& stream, const LambUpdate& args) {
  dispatch_update(args.common, args.exp_avg.dtype, [&]<class G, class S>(G, S) {
    launch_segments<device_common::pack_of<G, S, float>()>(
        stream, "lamb_moments", args.common, {}, device_common::LambMoments<G, S>(args),
        args.common.gradient.data, args.exp_avg.data, args.exp_avg_sq.data);
  });
}

void lamb_norms(Stream& stream, const LambUpdate& args, const Tensor& sums) {
  if (args.exp_avg.dtype == DType::kF32) {
    launch_sums(stream, "lamb_norms", args.common, device_common::LambDirection<float>(args), sums);
  } else {
    launch_sums(stream, "lamb_norms", args.common, device_common::LambDirection<BFloat16>(args),
                sums);
  }
}

void lamb_apply(Stream& stream, const LambUpdate& args, std::span<const float> ratios) {
  const auto launch = [&]<class S>(S) {
    launch_segments<device_common::pack_of<S, float>()>(
        stream, "lamb_apply", args.common, ratios, device_common::LambDirection<S>(args),
        args.common.parameter.data, args.exp_avg.data, args.exp_avg_sq.data);
  };
  args.exp_avg.dtype == DType::kF32 ? launch(float{}) : launch(BFloat16{});
}

void lars_norms(Stream& stream, const LarsUpdate& args, const Tensor& sums) {
  dispatch_float(args.common.gradient.dtype, [&]<class G>(G) {
    launch_sums(stream, "lars_norms", args.common, device_common::LarsTerms<G>(args), sums);
  });
}

void lars_apply(Stream& stream, const LarsUpdate& args, std::span<const float> ratios) {
  dispatch_update(args.common, args.momentum_buffer.dtype, [&]<class G, class S>(G, S) {
    launch_segments<device_common::pack_of<G, S, float>()>(
        stream, "lars_apply", args.common, ratios, device_common::Lars<G, S>(args),
        args.common.parameter.data, args.common.gradient.data, args.momentum_buffer.data);
  });
}

}  // namespace sherd::kernels::cuda
