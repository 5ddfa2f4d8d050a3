#include "engine/huggingface/coded_weights.h"

#include <array>
#include <cmath>

#include "core/error.h"
#include "core/shape_text.h"

namespace sherd::huggingface {
namespace {

using checkpoint::SafetensorsTensor;

constexpr std::int64_t kCodeBlock = 32;  ///< of 4-bit codes

std::int64_t blocks_in(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

}  // namespace

float value_of_e4m3(std::uint8_t code) {
  constexpr int kBias = 7, kFractionBits = 3;
  const int exponent = code >> kFractionBits & 15, fraction = code & 7;
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (exponent == 15 && fraction == 7) return std::nanf("");
  if (exponent == 0)
    return sign * std::ldexp(static_cast<float>(fraction), 1 - kBias - kFractionBits);
  return sign * std::ldexp(static_cast<float>(8 + fraction), exponent - kBias - kFractionBits);
}

bool CodedWeights::has(const SafetensorsTensor& tensor) const {
  return blocks_.rows > 0 && tensor.type == "F8_E4M3" && tensor.shape.size() == 2;
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
  if (!scales->dtype() || scales->shape != scale_shape(tensor)) {
    throw DataError("{}: tensor \"{}\" is {} {}; blocks of {} x {} need F32, BF16 or F16 {}",
                    folder_.path(), name, scales->type, shape_text(scales->shape), blocks_.rows,
                    blocks_.columns, shape_text(scale_shape(tensor)));
  }
}

bool CodedWeights::has_blocks(const std::string& name) const {
  return blocks_.mxfp4 && folder_.places().contains(name + "_blocks");
}

void CodedWeights::check_blocks(const std::string& name,
                                const std::vector<std::int64_t>& shape) const {
  std::vector<std::int64_t> scales = shape;
  scales.back() /= kCodeBlock;
  std::vector<std::int64_t> codes = scales;
  codes.push_back(kCodeBlock / 2);
  for (const auto& [member, wanted] :
       {std::pair(name + "_blocks", codes), {name + "_scales", scales}}) {
    const SafetensorsTensor* tensor = folder_.find(member);
    if (tensor && tensor->type == "U8" && tensor->shape == wanted &&
        shape.back() % kCodeBlock == 0) {
      continue;
    }
    throw DataError("{}: tensor \"{}\" is {}; 4-bit weights {} need U8 {}", folder_.path(), member,
                    tensor ? tensor->type + " " + shape_text(tensor->shape) : "missing",
                    shape_text(shape), shape_text(wanted));
  }
}

void CodedWeights::read_blocks(const std::string& name, std::int64_t first, std::int64_t count,
                               float* to, std::uint8_t* scratch) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  constexpr int kBias = 127, kNan = 255;
  const std::int64_t begin = first / kCodeBlock,
                     blocks = blocks_in(first + count, kCodeBlock) - begin;
  std::uint8_t* exponents = scratch + blocks * kCodeBlock / 2;
  reader_.read_bytes(folder_.places().at(name + "_blocks"), begin * kCodeBlock / 2,
                     blocks * kCodeBlock / 2, scratch);
  reader_.read_bytes(folder_.places().at(name + "_scales"), begin, blocks, exponents);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = first + i - begin * kCodeBlock;
    const std::uint8_t exponent = exponents[at / kCodeBlock];
    const int code = at % 2 == 0 ? scratch[at / 2] & 15 : scratch[at / 2] >> 4;
    const float value = (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
    if (exponent == kNan) {
      throw DataError("{}: the scale of element {} of tensor \"{}\" is NaN; weights must be finite",
                      folder_.path(), first + i, name);
    }
    to[i] = std::ldexp(value, exponent - kBias);
  }
}

const std::vector<float>& CodedWeights::scales_of(const std::string& name) {
  if (scaled_ == name) return scales_;
  const auto place = folder_.places().at(scale_of(name));
  const std::vector<std::int64_t>& shape = folder_.tensor(place).shape;
  scales_.resize(static_cast<std::size_t>(shape[0] * shape[1]));
  std::vector<std::uint16_t> as_stored(scales_.size());
  reader_.read(place, 0, shape[0] * shape[1], scales_.data(), as_stored.data());
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
