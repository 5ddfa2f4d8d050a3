#include "engine/model/parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace sherd::model {
namespace {

// Collects a unit's parameters in the order in which the *_parameters functions take them.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelShape& shape)
      : shape_(shape), units_at_(static_cast<std::size_t>(shape.num_blocks()), 0) {}

  void begin_unit(std::string name, UnitClass unit_class, UnitId id) {
    units_.push_back({std::move(name), unit_class, {}, id});
  }
  /// The units of a layer; `site` adds to the one of its part.
  void begin_layer(std::int64_t layer) {
    units_at_[static_cast<std::size_t>(layer)] = units_.size();
    const std::string block = fmt::format("block.{}", layer);
    const auto number = static_cast<int>(layer);
    begin_unit(block, UnitClass::kBlock, {UnitRole::kLayer, number, 0});
    for (std::size_t i = 0; i < shape_.layer_parts.size(); ++i) {
      const int part = static_cast<int>(i) + 1;
      if (!has_part(shape_, layer, part)) continue;
      begin_unit(block + "." + shape_.layer_parts[i].name, layer_class(part),
                 {UnitRole::kLayer, number, part});
    }
  }
  std::vector<ParameterSpec>& parameters_of(const UnitId& id) {
    const auto first = units_.begin() + units_at_[static_cast<std::size_t>(id.layer)];
    const auto unit =
        std::find_if(first, units_.end(), [&](const auto& of) { return of.id == id; });
    SHERD_CHECK(unit != units_.end(), "no unit of layer {}, part {}", id.layer, id.part);
    return unit->parameters;
  }
  void matrix(std::string name, std::int64_t rows, std::int64_t columns, double stddev) {
    add(units_.back().parameters, std::move(name), {rows, columns},
        {0.0f, static_cast<float>(stddev)});
  }
  void vector(std::string name, std::int64_t rows) {
    add(units_.back().parameters, std::move(name), {rows}, {0.0f, 0.0f});
  }
  /// The parameters of a site, under `prefix`, in `unit`.
  void site(const std::string& prefix, const Site& site, std::vector<ParameterSpec>& unit) {
    using Weight = Site::Weight;
    if (site.weight == Weight::kNone) return;
    const std::string name = prefix + site.name;
    if (site.weight == Weight::kVector) {
      add(unit, name + ".weight", {site.rows}, {0.0f, 0.0f});
    } else if (site.weight == Weight::kNorm) {
      add(unit, name + ".weight", {site.rows},
          {static_cast<float>(1.0 - shape_.norm_offset), 0.0f});
    } else {
      const double depth = site.weight == Weight::kMatrixToResidual
                               ? std::sqrt(2.0 * static_cast<double>(shape_.num_layers))
                               : 1.0;
      add(unit, name + ".weight", {site.rows, site.columns},
          {0.0f, static_cast<float>(std_of_blocks() / depth)});
      unit.back().matrix_rows = site.matrix_rows;
    }
    if (site.bias) add(unit, name + ".bias", {site.rows}, {0.0f, 0.0f});
  }
  double std_of_blocks() const {
    return shape_.block_init_std > 0.0 ? shape_.block_init_std : shape_.init_std;
  }
  void site(const Site& site) { this->site("", site, units_.back().parameters); }
  /// A and B of the adapter of `target`, in a unit that is there already.
  void adapter(const std::string& prefix, const AdapterTarget& target,
               std::vector<ParameterSpec>& unit) {
    const std::int64_t rank = shape_.adapter.rank, pairs = target.pairs();
    const auto stack = [&](const char* end, std::int64_t rows, std::int64_t columns) {
      add(unit, prefix + target.name + end, {pairs * rows, columns}, {0.0f, 0.0f});
      unit.back().matrix_rows.assign(static_cast<std::size_t>(target.experts), rows);
    };
    stack(".lora_a", rank, target.inputs);
    stack(".lora_b", target.rows, rank);
  }
  /// Parameters of units that aren't in the table have numbers, too.
  void skip(std::uint32_t parameters) { next_ += parameters; }
  /// The unit before the last `count` becomes the last one.
  void move_to_end(std::size_t count) {
    std::rotate(units_.end() - static_cast<std::ptrdiff_t>(count) - 1,
                units_.end() - static_cast<std::ptrdiff_t>(count), units_.end());
  }
  std::size_t size() const { return units_.size(); }
  std::vector<UnitSpec> take() { return std::move(units_); }

 private:
  void add(std::vector<ParameterSpec>& unit, std::string name, std::vector<std::int64_t> dimensions,
           InitialValue initial) {
    unit.push_back({std::move(name), std::move(dimensions), initial, next_++});
  }
  const ModelShape& shape_;
  std::vector<std::size_t> units_at_;  // where each layer's begin
  std::vector<UnitSpec> units_;
  std::uint32_t next_ = 0;
};

class ViewReader {
 public:
  ViewReader(std::span<const Tensor> views) : views_(views) {}  // NOLINT: made from lists of views
  Tensor next() {
    SHERD_CHECK(position_ < views_.size(), "a unit has more parameters than its {} views",
                views_.size());
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

UnitId id_of(std::int64_t layer, int part) {
  return {UnitRole::kLayer, static_cast<int>(layer), part};
}

// Layers of a kind have as many parameters, and there are few kinds.
class Skipped {
 public:
  explicit Skipped(const ModelShape& shape) {
    for (const std::int64_t layer : shape.layers_of_each_kind()) {
      std::uint32_t in_block = 0;
      for (const Site& site : block_sites(shape, layer)) {
        if (site.weight != Site::Weight::kNone) in_block += site.bias ? 2 : 1;
      }
      of_blocks_.push_back(in_block);
      of_adapters_.push_back(static_cast<std::uint32_t>(2 * adapter_targets(shape, layer).size()));
    }
  }
  std::uint32_t of_block(std::int64_t layer) const { return of_blocks_[kind(layer)]; }
  std::uint32_t of_adapters(std::int64_t layer) const { return of_adapters_[kind(layer)]; }

 private:
  std::size_t kind(std::int64_t layer) const {
    return static_cast<std::size_t>(layer) % of_blocks_.size();
  }
  std::vector<std::uint32_t> of_blocks_, of_adapters_;
};

std::vector<bool> layers_among(const ModelShape& shape, std::span<const UnitId> ids) {
  std::vector<bool> layers(static_cast<std::size_t>(shape.num_blocks()), false);
  for (const UnitId& id : ids) {
    if (id.role == UnitRole::kLayer) layers[static_cast<std::size_t>(id.layer)] = true;
  }
  return layers;
}

// The ends, and the layers that `has` names.
std::vector<UnitSpec> table_with(const ModelShape& shape, const std::vector<bool>& has) {
  TableBuilder table(shape);
  const Skipped skipped(shape);
  table.begin_unit("embedding", UnitClass::kEdge, {UnitRole::kEmbedding});
  table.matrix("embedding.token.weight", shape.vocab_size, shape.width, shape.init_std);
  if (shape.positions == Positions::kLearned) {
    table.matrix("embedding.position.weight", shape.max_positions, shape.width, shape.init_std);
  }
  if (shape.tied) table.site(final_norm_site(shape));
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    if (!has[static_cast<std::size_t>(i)]) {
      table.skip(skipped.of_block(i));
      continue;
    }
    table.begin_layer(i);
    for (const Site& site : block_sites(shape, i)) {
      table.site(fmt::format("block.{}.", i), site, table.parameters_of(id_of(i, site.part)));
    }
  }
  if (!shape.tied) {
    table.begin_unit("head", UnitClass::kEdge, {UnitRole::kHead});
    table.site(final_norm_site(shape));
    table.matrix("head.weight", shape.vocab_size, shape.width, shape.init_std);
    if (shape.biases.head) table.vector("head.bias", shape.vocab_size);
  }
  const std::size_t units_before = table.size();
  for (std::int64_t i = shape.num_layers; i < shape.num_blocks(); ++i) {
    if (!has[static_cast<std::size_t>(i)]) continue;
    table.begin_layer(i);
    for (const Site& site : block_sites(shape, i)) {
      table.site(fmt::format("block.{}.", i), site, table.parameters_of(id_of(i, site.part)));
    }
  }
  if (!shape.tied) table.move_to_end(table.size() - units_before);  // the head
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    if (!has[static_cast<std::size_t>(i)]) {
      table.skip(skipped.of_adapters(i));
      continue;
    }
    for (const AdapterTarget& target : adapter_targets(shape, i)) {
      table.adapter(fmt::format("block.{}.", i), target,
                    table.parameters_of(id_of(i, target.part)));
    }
  }
  return table.take();
}

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
  return table_with(shape, std::vector<bool>(static_cast<std::size_t>(shape.num_blocks()), true));
}

std::vector<UnitSpec> parameter_table(const ModelShape& shape, std::span<const UnitId> ids) {
  std::vector<UnitSpec> units = table_with(shape, layers_among(shape, ids));
  std::erase_if(units,
                [&](const UnitSpec& unit) { return std::ranges::find(ids, unit.id) == ids.end(); });
  return units;
}

EmbeddingParameters embedding_parameters(const ModelShape& shape, std::span<const Tensor> views) {
  ViewReader reader(views);
  EmbeddingParameters parameters;
  parameters.token_weight = reader.next();
  if (shape.positions == Positions::kLearned) parameters.position_weight = reader.next();
  return parameters;
}

BlockParameters block_parameters(const ModelShape& shape, std::int64_t layer,
                                 std::span<const std::vector<Tensor>> views) {
  std::vector<ViewReader> readers(views.begin(), views.end());
  BlockParameters parameters;
  for (const Site& site : block_sites(shape, layer)) {
    if (site.weight == Site::Weight::kNone) continue;
    parameters[site.id] = readers[static_cast<std::size_t>(site.part)].affine(site.bias);
  }
  const std::vector<AdapterTarget> targets = adapter_targets(shape, layer);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    ViewReader& reader = readers[static_cast<std::size_t>(targets[i].part)];
    const Tensor a = reader.next();
    parameters[targets[i].site].adapters.push_back({i, a, reader.next()});
  }
  return parameters;
}

BlockParameters block_parameters(const ModelShape& shape, std::int64_t layer,
                                 const std::vector<Tensor>& views) {
  return block_parameters(shape, layer, std::span(&views, 1));
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
    if (shape.biases.head) parameters.bias = reader.next();
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

std::int64_t num_active_parameters(const ModelShape& shape) {
  std::int64_t idle = 0;
  for (std::int64_t layer = 0; layer < shape.num_blocks(); ++layer) {
    for (const Site& site : block_sites(shape, layer)) {
      if (site.id != SiteId::kExpertsUp && site.id != SiteId::kExpertsDown) continue;
      const std::int64_t of_an_expert =
          site.rows / shape.moe.experts * (site.columns + (site.bias ? 1 : 0));
      idle += of_an_expert * (shape.moe.experts - shape.moe.per_token);
    }
    for (const AdapterTarget& target : adapter_targets(shape, layer)) {
      if (target.experts == 0) continue;
      const std::int64_t of_an_expert = shape.adapter.rank * (target.inputs + target.rows);
      idle += of_an_expert * (shape.moe.experts - shape.moe.per_token);
    }
  }
  return num_parameters(shape) - idle;
}

}  // namespace sherd::model
