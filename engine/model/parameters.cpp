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
  /// The parameters of a site, under `prefix`.
  void site(const std::string& prefix, const Site& site) {
    using Weight = Site::Weight;
    if (site.weight == Weight::kNone) return;
    const std::string name = prefix + site.name;
    if (site.weight == Weight::kNorm) {
      add(name + ".weight", {site.rows}, {static_cast<float>(1.0 - shape_.norm_offset), 0.0f});
    } else {
      const double depth = site.weight == Weight::kMatrixToResidual
                               ? std::sqrt(2.0 * static_cast<double>(shape_.num_layers))
                               : 1.0;
      matrix(name + ".weight", site.rows, site.columns, shape_.init_std / depth);
      units_.back().parameters.back().matrix_rows = site.matrix_rows;
    }
    if (site.bias) add(name + ".bias", {site.rows}, {0.0f, 0.0f});
  }
  /// A and B of the adapter of `target`, in a unit that is there already.
  void adapter(std::size_t unit, const std::string& prefix, const AdapterTarget& target) {
    const std::int64_t rank = shape_.adapter.rank;
    units_[unit].parameters.push_back(
        {prefix + target.name + ".lora_a", {rank, target.inputs}, {0.0f, 0.0f}, next_++});
    units_[unit].parameters.push_back(
        {prefix + target.name + ".lora_b", {target.rows, rank}, {0.0f, 0.0f}, next_++});
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

template <class Counts>
std::int64_t count_parameters(const ModelShape& shape, const Counts& counts) {
  std::int64_t count = 0;
  for (const UnitSpec& unit : parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (counts(parameter)) count += parameter.numel();
    }
  }
  return count;
}

}  // namespace

std::vector<UnitSpec> parameter_table(const ModelShape& shape) {
  TableBuilder table(shape);
  table.begin_unit("embedding", UnitClass::kEdge);
  table.matrix("embedding.token.weight", shape.vocab_size, shape.width, shape.init_std);
  if (shape.positions == Positions::kLearned) {
    table.matrix("embedding.position.weight", shape.max_positions, shape.width, shape.init_std);
  }
  if (shape.tied) table.site("", final_norm_site(shape));
  const std::vector<Site> sites = block_sites(shape);
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const std::string block = fmt::format("block.{}", i);
    table.begin_unit(block, UnitClass::kBlock);
    for (const Site& site : sites) table.site(block + ".", site);
  }
  if (!shape.tied) {
    table.begin_unit("head", UnitClass::kEdge);
    table.site("", final_norm_site(shape));
    table.matrix("head.weight", shape.vocab_size, shape.width, shape.init_std);
  }
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    for (const AdapterTarget& target : adapter_targets(shape)) {
      table.adapter(static_cast<std::size_t>(1 + i), fmt::format("block.{}.", i), target);
    }
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
  for (const Site& site : block_sites(shape)) {
    if (site.weight != Site::Weight::kNone) parameters[site.id] = reader.affine(site.bias);
  }
  const std::vector<AdapterTarget> targets = adapter_targets(shape);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Tensor a = reader.next();
    parameters[targets[i].site].adapters.push_back({i, a, reader.next()});
  }
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
  return count_parameters(shape, [](const ParameterSpec&) { return true; });
}

std::int64_t num_trained_parameters(const ModelShape& shape) {
  return count_parameters(shape, [&shape](const ParameterSpec& parameter) {
    return is_trained(shape, parameter.name);
  });
}

}  // namespace sherd::model
