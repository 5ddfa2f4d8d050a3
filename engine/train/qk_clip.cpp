#include "engine/train/qk_clip.h"

#include <algorithm>
#include <cmath>

#include "engine/train/stability_statistics.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

// x *= factor: without a mask, that is all that this kernel does.
void scale(Stream& stream, const Tensor& x, float factor) {
  kernels::dropout_backward(stream, x, {}, x, factor);
}

std::int64_t columns_of(const ParameterSpec& parameter) {
  if (parameter.cut) return parameter.cut->columns();
  return parameter.shape.size() > 1 ? parameter.shape[1] : 1;
}

// How many elements from `element` on are of one head: those of its box, up to the head's end.
std::int64_t run_length(const ParameterSpec& parameter, std::int64_t element, std::int64_t whole,
                        std::int64_t head_numel) {
  const ParameterSpec::Place place = parameter.place_of(element);
  const std::int64_t in_box = place.first + place.box.num_rows * place.box.num_columns - element;
  return std::min(in_box, head_numel - whole % head_numel);
}

}  // namespace

std::shared_ptr<const QkClip> QkClip::of(const TrainingOptions& options) {
  if (options.qk_clip_threshold == 0.0) return nullptr;
  return std::shared_ptr<const QkClip>(new QkClip(options));
}

QkClip::QkClip(const TrainingOptions& options)
    : threshold_(options.qk_clip_threshold),
      alpha_(options.qk_clip_alpha),
      query_heads_(options.model.query_heads),
      kv_heads_(options.model.kv_heads),
      head_width_(options.model.head_width()) {
  SHERD_CHECK(options.model.max_attention_logit && options.model.qk_norm == model::QkNorm::kNone &&
                  options.model.attention_softcap == 0.0,
              "QK-clip of scores that aren't found, or aren't linear in queries and keys");
}

double QkClip::eta(const std::vector<float>& max_logits, std::int64_t kv_head) const {
  const std::int64_t group = query_heads_ / kv_heads_;
  const auto first = max_logits.begin() + kv_head * group;
  const double largest = static_cast<double>(*std::max_element(first, first + group));
  return largest > threshold_ ? threshold_ / largest : 1.0;
}

// Of the query, key and value heads, in the order of attention.qkv.
std::vector<float> QkClip::factors(const std::vector<float>& max_logits) const {
  std::vector<float> factors(static_cast<std::size_t>(query_heads_ + 2 * kv_heads_), 1.0f);
  for (std::int64_t g = 0; g < kv_heads_; ++g) {
    const double eta = this->eta(max_logits, g);
    if (eta == 1.0) continue;
    const std::int64_t group = query_heads_ / kv_heads_;
    std::fill_n(factors.begin() + g * group, group, static_cast<float>(std::pow(eta, alpha_)));
    factors[static_cast<std::size_t>(query_heads_ + g)] =
        static_cast<float>(std::pow(eta, 1.0 - alpha_));
  }
  return factors;
}

std::int64_t QkClip::num_clipped(const StabilityReport& report) const {
  std::int64_t clipped = 0;
  for (const std::vector<float>& layer : report.max_logits) {
    for (std::int64_t g = 0; g < kv_heads_; ++g) {
      if (eta(layer, g) < 1.0) clipped += query_heads_ / kv_heads_;
    }
  }
  return clipped;
}

bool QkClip::apply(Stream& stream, const sharding::UnitState& unit,
                   const StabilityReport& report) const {
  const UnitId& id = unit.spec().id;
  if (id.role != UnitRole::kLayer) return false;
  const std::vector<float> factors =
      this->factors(report.max_logits[static_cast<std::size_t>(id.layer)]);
  if (std::ranges::all_of(factors, [](float factor) { return factor == 1.0f; })) return false;
  bool changed = false;
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      if (parameter.name.find(".attention.qkv.") == std::string::npos) continue;
      const std::int64_t head_numel = head_width_ * columns_of(parameter);
      for (std::int64_t done = 0, count = 0; done < piece.count; done += count) {
        const std::int64_t element = piece.first_element + done;
        const std::int64_t whole = parameter.element_of_whole(element);
        count = std::min(run_length(parameter, element, whole, head_numel), piece.count - done);
        const float factor = factors[static_cast<std::size_t>(whole / head_numel)];
        if (factor == 1.0f) continue;
        scale(stream, slice.part(piece.position + done, count), factor);
        changed = true;
      }
    }
  }
  return changed;
}

}  // namespace sherd::engine
