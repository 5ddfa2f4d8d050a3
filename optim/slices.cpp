#include "optim/slices.h"

#include <fnmatch.h>

#include <algorithm>

#include "kernels/eight_bits.h"
#include "optim/eight_bits.h"

namespace sherd::optim {
namespace {

constexpr std::int64_t kLongestSegment = 65536;

bool is_cut_by_columns(const ParameterSpec& parameter) {
  return parameter.cut && parameter.cut->cut == Cut::kColumns;
}

// Number of elements from `element` on that belong together: to the end of its logical matrix or
// box, or of its row there.
std::int64_t end_of_run(const ParameterSpec& parameter, std::int64_t element, bool drawn) {
  if (parameter.cut) {
    const ParameterSpec::Place place = parameter.place_of(element);
    if (!drawn || !is_cut_by_columns(parameter)) return place.first + place.box.numel();
    const std::int64_t columns = place.box.num_columns;
    return place.first + ((element - place.first) / columns + 1) * columns;
  }
  if (parameter.matrix_rows.empty()) return parameter.numel();
  const std::int64_t width = parameter.numel() / parameter.shape[0];
  std::int64_t end = 0;
  for (const std::int64_t rows : parameter.matrix_rows) {
    end += rows * width;
    if (element < end) break;
  }
  return end;
}

// Random bits are drawn if rounding is stochastic. In 8 bits, matrices don't cut blocks, since no
// update needs them.
void add_segments(const sharding::Piece& piece, const ParameterSpec& parameter, float weight_decay,
                  const MomentType& moments, std::vector<kernels::UpdateSegment>& segments) {
  std::int64_t done = 0;
  while (done < piece.count) {
    const std::int64_t element = piece.first_element + done;
    const std::int64_t end =
        moments.in_8_bits ? parameter.numel() : end_of_run(parameter, element, moments.stochastic);
    const std::int64_t count = std::min({piece.count - done, kLongestSegment, end - element});
    segments.push_back({piece.position + done, count, weight_decay, parameter.index, element,
                        parameter.element_of_whole(element) - element});
    done += count;
  }
}

bool matches(const std::vector<std::string>& patterns, const ParameterSpec& parameter) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), parameter.name.c_str(), 0) == 0;
  });
}

void add_groups(UpdatedSlice& slice, const OptimizerOptions& options, const UnitSpec& unit) {
  for (const kernels::UpdateSegment& segment : slice.segments) {
    const int group = options.group_of(parameter_at(unit, segment.parameter));
    auto found = std::ranges::find(slice.groups, group, &UpdatedSlice::Group::group);
    if (found == slice.groups.end()) found = slice.groups.insert(found, {.group = group});
    found->segments.push_back(segment);
  }
}

}  // namespace

float WeightDecay::rate_of(const ParameterSpec& parameter) const {
  return parameter.shape.size() < 2 || matches(no_decay, parameter) ? 0.0f : rate;
}

bool ParameterGroup::has(const ParameterSpec& parameter) const {
  return matches(patterns, parameter);
}

int OptimizerOptions::group_of(const ParameterSpec& parameter) const {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].has(parameter)) return static_cast<int>(i);
  }
  return -1;
}

ParameterGroup OptimizerOptions::rates_of(int group) const {
  if (group >= 0) return groups[static_cast<std::size_t>(group)];
  return {.beta1 = beta1, .beta2 = beta2, .eps = eps};
}

float OptimizerOptions::decay_of(const ParameterSpec& parameter) const {
  return rates_of(group_of(parameter)).weight_decay.value_or(decay.rate_of(parameter));
}

float OptimizerOptions::lr_factor_of(const ParameterSpec& parameter) const {
  return rates_of(group_of(parameter)).lr_factor;
}

namespace {

// Elements [first, first + count) of a slice.
UpdatedSlice part_of_slice(const sharding::UnitState& unit, int slice_index, std::int64_t first,
                           std::int64_t count, const OptimizerOptions& options) {
  // Blocks are rounded by the publish alone.
  const Tensor rounded = unit.plan().gathers_blocks() ? Tensor{} : unit.rounded_slice(slice_index);
  UpdatedSlice slice{slice_index,
                     unit.fp32_slice(slice_index).part(first, count),
                     unit.gradient(slice_index).part(first, count),
                     rounded ? rounded.part(first, count) : rounded,
                     0,
                     {},
                     {}};
  for (const sharding::Piece& whole : unit.layout().pieces(slice_index)) {
    const std::int64_t begin = std::max(whole.position, first);
    const std::int64_t end = std::min(whole.position + whole.count, first + count);
    if (begin >= end) continue;
    const ParameterSpec& parameter = unit.spec().parameters[whole.parameter];
    const sharding::Piece piece = {whole.parameter, whole.first_element + begin - whole.position,
                                   end - begin, begin - first};
    add_segments(piece, parameter, options.decay_of(parameter), options.moment_type,
                 slice.segments);
  }
  add_groups(slice, options, unit.spec());
  return slice;
}

}  // namespace

std::vector<std::vector<UpdatedSlice>> updated_slices(const std::vector<sharding::UnitState>& units,
                                                      const OptimizerOptions& options,
                                                      std::int64_t block) {
  std::vector<std::vector<UpdatedSlice>> slices;
  for (const sharding::UnitState& unit : units) {
    std::vector<UpdatedSlice>& of_unit = slices.emplace_back();
    const std::int64_t numel = unit.layout().slice_numel();
    std::int64_t before = 0;  // elements of earlier slices
    for (const int slice_index : unit.updated_slices()) {
      for (std::int64_t first = 0; first < numel;) {
        const std::int64_t rest = block > 0 ? block - (before + first) % block : numel;
        const std::int64_t count = std::min(rest, numel - first);
        of_unit.push_back(part_of_slice(unit, slice_index, first, count, options));
        of_unit.back().first_element = before + first;
        first += count;
      }
      before += numel;
    }
  }
  return slices;
}

BufferSpec moment_buffer(const sharding::UnitPlan& unit, const std::string& kind,
                         const MomentType& type, std::int64_t block) {
  const MomentForm form = form_of(kind, type);
  BufferSpec buffer{unit.spec.name + "." + kind, Category::kOptimizer, form.dtype,
                    unit.updated_numel() / form.elements};
  if (block > 0) {
    buffer.home = Home::kDisk;
    buffer.disk_block = block / form.elements;
  }
  return buffer;
}

std::vector<BufferSpec> moment_buffers(const sharding::ShardingPlan& plan,
                                       const std::vector<std::string>& kinds,
                                       const MomentType& type, const MomentBlock& block) {
  std::vector<BufferSpec> buffers;
  for (const std::string& kind : kinds) {
    for (const sharding::UnitPlan& unit : plan.units) {
      if (!unit.trains()) continue;
      buffers.push_back(moment_buffer(unit, kind, type, block ? block(unit) : 0));
    }
  }
  return buffers;
}

std::vector<Buffer> acquire_moments(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const std::string& kind, const MomentType& type,
                                    const MomentBlock& block) {
  std::vector<Buffer> buffers;
  for (const sharding::UnitState& unit : units) {
    const sharding::UnitPlan& plan = unit.plan();
    buffers.push_back(unit.trains()
                          ? rank.acquire(moment_buffer(plan, kind, type, block ? block(plan) : 0))
                          : Buffer());
  }
  return buffers;
}

void add_moment_piece(MomentPiece piece, std::vector<MomentPiece>& pieces) {
  if (!pieces.empty()) {
    MomentPiece& last = pieces.back();
    const bool goes_on = last.kind == piece.kind && last.slice_index == piece.slice_index &&
                         last.parameter == piece.parameter &&
                         last.first_element + last.data.numel == piece.first_element &&
                         static_cast<char*>(last.data.data) + last.data.bytes() == piece.data.data;
    if (goes_on) {
      last.data.numel += piece.data.numel;
      return;
    }
  }
  pieces.push_back(std::move(piece));
}

void add_moment_pieces(const UpdatedSlice& slice, const std::string& kind, const Tensor& moments,
                       std::vector<MomentPiece>& pieces, std::int64_t elements) {
  for (const kernels::UpdateSegment& segment : slice.segments) {
    add_moment_piece(
        {kind, slice.slice_index, segment.parameter, segment.first_element / elements,
         moments.part(segment.first / elements, (segment.count + elements - 1) / elements)},
        pieces);
  }
}

std::int64_t most_segments(const sharding::UnitPlan& unit, const MomentType& moments) {
  std::int64_t num_runs = 0;
  for (const ParameterSpec& parameter : unit.spec.parameters) {
    if (moments.stochastic && is_cut_by_columns(parameter)) {
      num_runs += parameter.shape[0];
    } else if (parameter.cut) {
      num_runs += std::ssize(parameter.cut->held);
    } else {
      num_runs += std::max<std::int64_t>(1, std::ssize(parameter.matrix_rows));
    }
  }
  return unit.layout.slice_numel() / kLongestSegment + num_runs;
}

const ParameterSpec& parameter_at(const UnitSpec& unit, std::uint32_t index) {
  const auto found = std::ranges::lower_bound(unit.parameters, index, {}, &ParameterSpec::index);
  SHERD_CHECK(found != unit.parameters.end() && found->index == index, "{} has no parameter {}",
              unit.name, index);
  return *found;
}

kernels::UpdateCommon common_of(const UpdatedSlice& slice, const UpdateStep& step,
                                const MomentType& moments) {
  // A separate seed: the model's dropout draws at the same steps.
  constexpr std::uint64_t kRoundingSeed = 0x726f756e64696e67ull;
  return {.parameter = slice.parameter,
          .gradient = slice.gradient,
          .segments = slice.segments,
          .lr = step.lr,
          .gradient_scale = step.gradient_scale,
          .rounding = {
              moments.stochastic,
              {moments.seed ^ kRoundingSeed, static_cast<std::uint32_t>(step.update_number), 0}}};
}

}  // namespace sherd::optim
