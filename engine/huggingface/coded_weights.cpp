#include "engine/huggingface/coded_weights.h"

#include <array>
#include <cmath>

#include "core/error.h"

namespace sherd::huggingface {
namespace {

using checkpoint::SafetensorsTensor;
using checkpoint::shape_text;

std::int64_t blocks_in(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

}  // namespace

float value_of_e4m3(std::uint8_t code) {
  constexpr int kBias = 7, kFractionBits = 3;
  const int exponent = code >> kFractionBits & 15, fraction = code & 7;
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (exponent == 15 && fraction == 7) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - kBias - kFractionBits);
  return sign * std::ldexp(static_cast<float>(8 + fraction), exponent - kBias - kFractionBits);
}

bool CodedWeights::has(const SafetensorsTensor& tensor) const {
  return blocks_ && tensor.type == "F8_E4M3" && tensor.shape.size() == 2;
}

std::vector<std::int64_t> CodedWeights::scale_shape(const SafetensorsTensor& tensor) const {
  return {blocks_in(tensor.shape[0], blocks_.rows), blocks_in(tensor.shape[1], blocks_.columns)};
}

void CodedWeights::check(const SafetensorsTensor& tensor) const {
  const std::string name = scale_of(tensor.name);
  const SafetensorsTensor* scales = folder_.find(name);
  if (!scales) {
    throw DataError("{}: lacks tensor \"{}\", the scales of 8-bit weights", folder_.path(), name);
  }
  if (scales->dtype() != DType::kF32 || scales->shape != scale_shape(tensor)) {
    throw DataError("{}: tensor \"{}\" is {} {}; blocks of {} x {} need F32 {}", folder_.path(), name,
                    scales->type, shape_text(scales->shape), blocks_.rows, blocks_.columns,
                    shape_text(scale_shape(tensor)));
  }
}

const std::vector<float>& CodedWeights::scales_of(const std::string& name) {
  if (scaled_ == name) return scales_;
  const auto place = folder_.places().at(scale_of(name));
  const std::vector<std::int64_t>& shape = folder_.tensor(place).shape;
  scales_.resize(static_cast<std::size_t>(shape[0] * shape[1]));
  reader_.read(place, 0, shape[0] * shape[1], scales_.data(), nullptr);
  scaled_ = name;
  return scales_;
}

void CodedWeights::read(const std::string& name, std::int64_t first, std::int64_t count, float* to,
                        std::uint8_t* scratch) {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = value_of_e4m3(static_cast<std::uint8_t>(i));
    }
    return values;
  }();
  const auto place = folder_.places().at(name);
  const std::int64_t columns = folder_.tensor(place).shape[1];
  const std::vector<float>& scales = scales_of(name);
  const std::int64_t per_row = blocks_in(columns, blocks_.columns);
  reader_.read_bytes(place, first, count, scratch);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = (first + i) / columns, column = (first + i) % columns;
    const std::int64_t block = row / blocks_.rows * per_row + column / blocks_.columns;
    to[i] = kValues[scratch[i]] * scales[static_cast<std::size_t>(block)];
    if (std::isfinite(to[i])) continue;
    throw DataError("{}: element {} of tensor \"{}\" is {}; weights must be finite", folder_.path(),
                    first + i, name, to[i]);
  }
}

}  // namespace sherd::huggingface
