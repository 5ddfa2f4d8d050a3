#include <algorithm>

#include "kernels/device_common/update.h"
#include "kernels/eight_bits.h"
#include "kernels/launches/memory.h"

namespace sherd::kernels::launches {

namespace {

std::int64_t size(const ConstTensor& tensor) {
  return tensor ? static_cast<std::int64_t>(size_of(tensor.dtype)) : 0;
}

// As many launches as carry all segments; each element of every buffer once. `of_a_block`: bytes of
// scales that are read and written for each block of 64.
Launches of_segments(std::string_view kernel, std::span<const UpdateSegment> all,
                     std::int64_t read_each, std::int64_t written_each,
                     std::int64_t written_of_a_segment = 0, std::int64_t of_a_block = 0) {
  Launches launches;
  for (std::size_t first = 0; first < all.size(); first += device_common::kMaxSegments) {
    const auto here =
        all.subspan(first, std::min<std::size_t>(device_common::kMaxSegments, all.size() - first));
    std::int64_t count = 0, scales = 0;
    for (const UpdateSegment& segment : here) {
      count += segment.count;
      scales += eight_bit_blocks(segment.count) * of_a_block;
    }
    const auto segments = static_cast<std::int64_t>(here.size());
    if (count == 0 && written_of_a_segment == 0) continue;
    launches.push_back(memory(kernel, count * read_each + scales,
                              count * written_each + segments * written_of_a_segment + scales));
  }
  return launches;
}
Launches of_joined_segments(std::string_view kernel, const UpdateCommon& common,
                            std::int64_t read_each, std::int64_t written_each) {
  const std::int64_t of_a_block = size(common.scales) + size(common.second_scales);
  return of_segments(kernel, device_common::join_neighbours(common.segments), read_each,
                     written_each, 0, of_a_block);
}

// The two sums of a segment.
constexpr std::int64_t kSums = 2 * kDouble;

}  // namespace

Launches adam_update(const AdamUpdate& args) {
  const std::int64_t state = size(args.exp_avg) + size(args.exp_avg_sq) + kFloat;
  return of_joined_segments("adam_update", args.common, size(args.common.gradient) + state,
                            state + size(args.common.rounded));
}
Launches sgd_update(const SgdUpdate& args) {
  const std::int64_t state = size(args.momentum_buffer) + kFloat;
  return of_joined_segments("sgd_update", args.common, size(args.common.gradient) + state,
                            state + size(args.common.rounded));
}
Launches lion_update(const LionUpdate& args) {
  const std::int64_t state = size(args.exp_avg) + kFloat;
  return of_joined_segments("lion_update", args.common, size(args.common.gradient) + state,
                            state + size(args.common.rounded));
}
Launches lamb_moments(const LambUpdate& args) {
  const std::int64_t moments = size(args.exp_avg) + size(args.exp_avg_sq);
  return of_joined_segments("lamb_moments", args.common,
                            size(args.common.gradient) + kFloat + moments, moments);
}
Launches lamb_norms(const LambUpdate& args, const Tensor&) {
  return of_segments("lamb_norms", args.common.segments,
                     size(args.exp_avg) + size(args.exp_avg_sq) + kFloat, 0, kSums);
}
Launches lamb_apply(const LambUpdate& args, std::span<const float>) {
  return of_segments("lamb_apply", args.common.segments,
                     size(args.exp_avg) + size(args.exp_avg_sq) + kFloat, kFloat);
}
Launches lars_norms(const LarsUpdate& args, const Tensor&) {
  return of_segments("lars_norms", args.common.segments, size(args.common.gradient) + kFloat, 0,
                     kSums);
}
Launches lars_apply(const LarsUpdate& args, std::span<const float>) {
  const std::int64_t state = size(args.momentum_buffer) + kFloat;
  return of_segments("lars_apply", args.common.segments, size(args.common.gradient) + state, state);
}
Launches muon_momentum(const MuonUpdate& args) {
  const std::int64_t moment = size(args.momentum_buffer);
  return of_joined_segments("muon_momentum", args.common, size(args.common.gradient) + moment,
                            moment + kFloat);
}
Launches muon_apply(const MuonUpdate& args, std::span<const float>) {
  return of_segments("muon_apply", args.common.segments, 2 * kFloat, kFloat);
}

}  // namespace sherd::kernels::launches
