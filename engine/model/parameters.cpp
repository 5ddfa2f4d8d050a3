#include "engine/model/parameters.h"

#include <fmt/core.h>

#include <cmath>

namespace sherd::model {
namespace {

// Collects a unit's parameters in the order in which the *_parameters functions take them.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelShape& shape) : shape_(shape) {}

  void begin_unit(std::string name, UnitClass unit_class) {
    units_.push_back({std::move(name), unit_class, {}});
  }
  void matrix(std::string name, std::int64_t rows, std::int64_t columns, double stddev) {
    add(std::move(name), {rows, columns}, {0.0f, static_cast<float>(stddev)});
  }
  void projection(const std::string& name, std::int64_t rows, std::int64_t columns, double stddev,
                  std::vector<std::int64_t> matrix_rows = {}) {
    matrix(name + ".weight", rows, columns, stddev);
    units_.back().parameters.back().matrix_rows = std::move(matrix_rows);
    if (shape_.bias) add(name + ".bias", {rows}, {0.0f, 0.0f});
  }
  void norm(const std::string& name) {
    add(name + ".weight", {shape_.width}, {1.0f, 0.0f});
    if (shape_.norm_bias()) add(name + ".bias", {shape_.width}, {0.0f, 0.0f});
  }
  std::vector<UnitSpec> take() { return std::move(units_); }

 private:
  void add(std::string name, std::vector<std::int64_t> dimensions, InitialValue initial) {
    units_.back().parameters.push_back({std::move(name), std::move(dimensions), initial, next_++});
  }
  const ModelShape& shape_;
  std::vector<UnitSpec> units_;
  std::uint32_t next_ = 0;
};

class ViewReader {
 public:
  explicit ViewReader(std::span<const Tensor> views) : views_(views) {}
  Tensor next() {
    CHECK(position_ < views_.size(), "a unit has more parameters than its {} views", views_.size());
    return views_[position_++];
  }
  Affine affine(bool bias) {
    Affine affine;
    affine.weight = next();
    if (bias) affine.bias = next();
    return affine;
  }

 private:
  std::span<const Tensor> views_;
  std::size_t position_ = 0;
};

}  // namespace

std::vector<UnitSpec> parameter_table(const ModelShape& shape) {
  const double stddev = shape.init_std;
  const double residual = stddev / std::sqrt(2.0 * static_cast<double>(shape.num_layers));
  TableBuilder table(shape);
  table.begin_unit("embedding", UnitClass::kEdge);
  table.matrix("embedding.token.weight", shape.vocab_size, shape.width, stddev);
  if (shape.positions == Positions::kLearned) {
    table.matrix("embedding.position.weight", shape.max_positions, shape.width, stddev);
  }
  if (shape.tied) table.norm("final_norm");

  const std::int64_t heads_width = shape.query_heads * shape.head_width();
  const std::int64_t kv_width = shape.kv_heads * shape.head_width();
  std::vector<std::int64_t> up_rows;
  if (shape.gated()) up_rows = {shape.ffn_width, shape.ffn_width};
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const std::string block = fmt::format("block.{}", i);
    table.begin_unit(block, UnitClass::kBlock);
    table.norm(block + ".norm1");
    table.projection(block + ".attention.qkv", shape.qkv_width(), shape.width, stddev,
                     {heads_width, kv_width, kv_width});
    table.projection(block + ".attention.output", shape.width, heads_width, residual);
    table.norm(block + ".norm2");
    table.projection(block + ".mlp.up", shape.up_width(), shape.width, stddev, up_rows);
    table.projection(block + ".mlp.down", shape.width, shape.ffn_width, residual);
  }
  if (!shape.tied) {
    table.begin_unit("head", UnitClass::kEdge);
    table.norm("final_norm");
    table.matrix("head.weight", shape.vocab_size, shape.width, stddev);
  }
  return table.take();
}

EmbeddingParameters embedding_parameters(const ModelShape& shape, std::span<const Tensor> views) {
  ViewReader reader(views);
  EmbeddingParameters parameters;
  parameters.token_weight = reader.next();
  if (shape.positions == Positions::kLearned) parameters.position_weight = reader.next();
  return parameters;
}

BlockParameters block_parameters(const ModelShape& shape, std::span<const Tensor> views) {
  ViewReader reader(views);
  BlockParameters parameters;
  parameters.norm1 = reader.affine(shape.norm_bias());
  parameters.qkv = reader.affine(shape.bias);
  parameters.attention_output = reader.affine(shape.bias);
  parameters.norm2 = reader.affine(shape.norm_bias());
  parameters.up = reader.affine(shape.bias);
  parameters.down = reader.affine(shape.bias);
  return parameters;
}

HeadParameters head_parameters(const ModelShape& shape, std::span<const Tensor> views) {
  ViewReader reader(views);
  HeadParameters parameters;
  if (shape.tied) {
    parameters.weight = reader.next();
    if (shape.positions == Positions::kLearned) reader.next();
    parameters.final_norm = reader.affine(shape.norm_bias());
  } else {
    parameters.final_norm = reader.affine(shape.norm_bias());
    parameters.weight = reader.next();
  }
  return parameters;
}

std::int64_t num_parameters(const ModelShape& shape) {
  std::int64_t count = 0;
  for (const UnitSpec& unit : parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) count += parameter.numel();
  }
  return count;
}

}  // namespace sherd::model
