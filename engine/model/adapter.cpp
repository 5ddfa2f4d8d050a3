#include "engine/model/adapter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/model/parameters.h"
#include "engine/model/rng_sites.h"
#include "kernels/columns.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"

namespace sherd::model {
namespace {

constexpr std::string_view kBlock = "block.";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// The parts of one site that can be a target: of a stacked matrix, each part and the whole.
void add_targets(const ModelShape& shape, const Site& site, std::vector<AdapterTarget>& targets) {
  const bool cut = site.weight == Site::Weight::kMatrixToResidual;  // by its columns
  const std::int64_t ranks = cut ? shape.part.degree : 1;
  const auto add = [&](std::string name, std::int64_t first, std::int64_t rows) {
    targets.push_back({std::move(name), site.id, first, rows, site.columns,
                       cut ? shape.part.rank * site.columns : 0, ranks * site.columns, site.part});
  };
  const bool gated = site.id == SiteId::kUp && shape.gated();
  add(gated ? "mlp.gate_up" : site.name, 0, site.rows);
  const std::vector<std::string> parts =
      site.id == SiteId::kQkv
          ? std::vector<std::string>{"attention.query", "attention.key", "attention.value"}
      : gated ? std::vector<std::string>{"mlp.gate", "mlp.up"}
              : std::vector<std::string>{};
  std::int64_t first = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    add(parts[i], first, site.matrix_rows[i]);
    first += site.matrix_rows[i];
  }
}

// An adapter for each expert's matrix; a gated expert's gate is a matrix of its own.
void add_expert_targets(const ModelShape& shape, const Site& site,
                        std::vector<AdapterTarget>& targets) {
  const auto add = [&](const char* name, std::int64_t first, std::int64_t rows) {
    targets.push_back({name, site.id, first, rows, site.columns, 0, site.columns, site.part,
                       shape.held_experts()});
  };
  const std::int64_t F = shape.moe.ffn_width;
  if (site.id == SiteId::kExpertsDown) return add("moe.experts.down", 0, shape.width);
  if (site.id != SiteId::kExpertsUp) return;
  if (shape.gated()) add("moe.experts.gate", 0, F);
  add("moe.experts.up", shape.gated() ? F : 0, F);
}

bool is_matrix(const Site& site) {
  return site.weight == Site::Weight::kMatrix || site.weight == Site::Weight::kMatrixToResidual;
}

std::vector<AdapterTarget> targets_of(const ModelShape& shape, const std::vector<Site>& sites) {
  std::vector<AdapterTarget> targets;
  for (const Site& site : sites) {
    if (!is_matrix(site)) continue;
    (site.of_experts ? add_expert_targets : add_targets)(shape, site, targets);
  }
  return targets;
}

std::int64_t widest_norm(const ModelShape& shape) {
  std::int64_t widest = shape.width;
  for (const Site& site : largest_sites(shape)) {
    if (is_of_vectors(site)) widest = std::max(widest, site.rows);
  }
  return widest;
}

}  // namespace

std::vector<AdapterTarget> possible_targets(const ModelShape& shape) {
  return targets_of(shape, largest_sites(shape));
}

std::vector<AdapterTarget> adapter_targets(const ModelShape& shape, std::int64_t layer) {
  std::vector<AdapterTarget> targets;
  if (!shape.adapter.active()) return targets;
  for (AdapterTarget& target : targets_of(shape, block_sites(shape, layer))) {
    if (contains(shape.adapter.targets, target.name)) targets.push_back(std::move(target));
  }
  return targets;
}

bool is_target_of_experts(std::string_view target) {
  return target.starts_with("moe.experts.");
}

bool adapts_experts(const AdapterShape& adapter) {
  return adapter.active() && std::ranges::any_of(adapter.targets, is_target_of_experts);
}

std::string_view module_of(std::string_view parameter) {
  if (parameter.starts_with(kBlock))
    parameter.remove_prefix(parameter.find('.', kBlock.size()) + 1);
  return parameter.substr(0, parameter.rfind('.'));
}

std::vector<std::string> possible_modules(const ModelShape& shape) {
  std::vector<std::string> modules;
  for (const UnitSpec& unit : parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::string_view module = module_of(parameter.name);
      if (!is_adapter(parameter.name) && !contains(modules, module)) modules.emplace_back(module);
    }
  }
  return modules;
}

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(".lora_a") || parameter.ends_with(".lora_b");
}

bool is_trained(const ModelShape& shape, std::string_view parameter) {
  if (!shape.adapter.active()) {
    return !std::ranges::binary_search(shape.frozen, parameter, std::less<>());
  }
  return is_adapter(parameter) || contains(shape.adapter.trained_modules, module_of(parameter));
}

bool has_frozen(const ModelShape& shape) {
  return shape.adapter.active() || !shape.frozen.empty();
}

std::optional<float> uniform_bound(const ParameterSpec& parameter) {
  if (!parameter.name.ends_with(".lora_a")) return std::nullopt;
  const std::int64_t inputs = parameter.cut ? parameter.cut->columns() : parameter.shape[1];
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(inputs)));
}

bool trains_embedding(const ModelShape& shape) {
  return is_trained(shape, "embedding.token.weight") ||
         (shape.positions == Positions::kLearned && is_trained(shape, "embedding.position.weight"));
}

namespace {

// Weight and bias are trained together.
bool trains_site(const ModelShape& shape, std::int64_t block, const Site& site) {
  return site.weight != Site::Weight::kNone &&
         is_trained(shape, fmt::format("block.{}.{}.weight", block, site.name));
}

}  // namespace

std::int64_t lowest_trained_block(const ModelShape& shape) {
  if (shape.adapter.active() || shape.frozen.empty() || trains_embedding(shape)) return 0;
  for (std::int64_t block = 0; block < shape.num_layers; ++block) {
    for (const Site& site : block_sites(shape, block)) {
      if (trains_site(shape, block, site)) return block;
    }
  }
  return shape.num_layers;
}

BackwardReach backward_reach(const ModelShape& shape, std::int64_t block) {
  BackwardReach reach;
  if (block > lowest_trained_block(shape) || trains_embedding(shape)) return reach;
  const std::vector<AdapterTarget> targets = adapter_targets(shape, block);
  const std::vector<Site> sites = block_sites(shape, block);
  const auto trains = [&](SiteId id) {
    const auto site = std::ranges::find(sites, id, &Site::id);
    if (site != sites.end() && trains_site(shape, block, *site)) return true;
    return std::ranges::any_of(targets, [id](const auto& target) { return target.site == id; });
  };
  const bool norm1 = trains(SiteId::kNorm1);
  const auto is_of_attention = [](const Site& site) {
    return site.id <= SiteId::kAttentionNorm || site.id == SiteId::kNorm2;
  };
  const bool any_of_attention = std::ranges::any_of(
      sites, [&](const Site& site) { return is_of_attention(site) && trains(site.id); });
  reach.input = norm1;
  const bool frozen_experts = shape.has_experts(block) && !shape.adapter.active();
  reach.attention = shape.parallel() || !shape.has_mlp(block) || frozen_experts || any_of_attention;
  return reach;
}

AdapterProducts::AdapterProducts(const ModelShape& shape, const Acquire& acquire)
    : rank_(shape.adapter.rank),
      scale_(static_cast<float>(shape.adapter.scale)),
      probability_(shape.adapter.dropout) {
  if (!has_frozen(shape)) return;
  if (shape.adapter.active()) acquire_products(shape, acquire);
  discarded_ = acquire({"adapter.discarded", Category::kWorkspace, DType::kF32, widest_norm(shape),
                        kLoss | kBackward});
}

void AdapterProducts::acquire_products(const ModelShape& shape, const Acquire& acquire) {
  std::int64_t rows = 0, inputs = 0;
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    std::vector<Target>& own = layers_.emplace_back();
    const std::vector<Site> sites = block_sites(shape, layer);
    for (AdapterTarget& target : adapter_targets(shape, layer)) {
      if (target.experts == 0) {
        rows = std::max(rows, target.rows);
        inputs = std::max(inputs, target.inputs);
      }
      const std::int64_t site_rows = std::ranges::find(sites, target.site, &Site::id)->rows;
      own.push_back({std::move(target), site_rows});
    }
  }
  if (rows == 0) return;  // of experts alone
  const auto scratch = [&](const char* name, std::int64_t numel, Phases phases) {
    return acquire({name, Category::kActivations, shape.dtype, numel, phases});
  };
  constexpr Phases kInBlocks = kForward | kBackward | kEvaluation;
  h_TR_ = scratch("adapter.h", shape.tokens() * rank_, kInBlocks);
  d_h_TR_ = scratch("adapter.d_h", shape.tokens() * rank_, kBackward);
  z_TC_ = scratch("adapter.z", shape.tokens() * rows, kInBlocks);
  if (probability_ > 0.0) {
    dropped_TI_ = scratch("adapter.dropped", shape.tokens() * inputs, kInBlocks);
  }
}

void AdapterProducts::begin(const ModelShape& shape, std::int64_t block, const Pass& pass) {
  tokens_ = shape.tokens();
  block_ = block;
  first_token_ = pass.first_row * shape.whole_seq_length() + shape.first_position();
  rows_ = {.rows = shape.seq_length,
           .all_rows = shape.whole_seq_length(),
           .gap_at = shape.position_run(0).count,
           .gap = shape.position_gap()};
  address_ = {pass.seed, pass.step, 0};
  probability_ = pass.training ? shape.adapter.dropout : 0.0;
}

kernels::Dropout AdapterProducts::dropout_of(const AdapterTensors& adapter) const {
  kernels::Dropout dropout;
  dropout.probability = static_cast<float>(probability_);
  dropout.address = address_;
  dropout.address.site = adapter_site(block_, adapter.target);
  const AdapterTarget& target = target_of(adapter);
  dropout.first_element = first_token_ * target.all_inputs + target.first_input;
  if (target.cuts_inputs() || rows_.rows < rows_.all_rows) {
    dropout.part = rows_;
    dropout.part.columns = target.inputs;
    dropout.part.all_columns = target.all_inputs;
  }
  return dropout;
}

ConstTensor AdapterProducts::dropped(Stream& stream, const AdapterTensors& adapter,
                                     ConstTensor x) const {
  const kernels::Dropout dropout = dropout_of(adapter);
  if (!dropout.active()) return x;
  const Tensor out = dropped_TI_.tensor().part(0, x.numel);
  kernels::dropout_backward(stream, x, dropout, out);
  return out;
}

void AdapterProducts::forward(Stream& stream, const Affine& parameters, ConstTensor x, Tensor y,
                              Tensor workspace) const {
  for (const AdapterTensors& adapter : parameters.adapters) {
    const auto& [target, site_rows] = own(adapter);
    const Tensor h_TR = h_TR_.tensor().part(0, tokens_ * rank_);
    const Tensor z_TC = z_TC_.tensor().part(0, tokens_ * target.rows);
    kernels::linear_forward(stream, {{tokens_, target.inputs, rank_},
                                     dropped(stream, adapter, x),
                                     adapter.a,
                                     {},
                                     h_TR,
                                     workspace});
    kernels::linear_forward(stream,
                            {{tokens_, rank_, target.rows}, h_TR, adapter.b, {}, z_TC, workspace});
    const kernels::Columns columns{tokens_, site_rows, target.first_row, target.rows};
    kernels::add_to_columns(stream, columns, z_TC, scale_, y);
  }
}

void AdapterProducts::backward(Stream& stream, const Affine& parameters, const Affine& gradients,
                               ConstTensor x, ConstTensor dy, Tensor dx, Tensor workspace,
                               const Parts& parts) const {
  for (std::size_t i = 0; i < parameters.adapters.size(); ++i) {
    const AdapterTensors& adapter = parameters.adapters[i];
    const AdapterTensors& gradient = gradients.adapters[i];
    const auto& [target, site_rows] = own(adapter);
    const kernels::LinearShape down{tokens_, target.inputs, rank_}, up{tokens_, rank_, target.rows};
    const Tensor h_TR = h_TR_.tensor().part(0, tokens_ * rank_);
    const Tensor d_h_TR = d_h_TR_.tensor().part(0, tokens_ * rank_);
    const Tensor d_z_TC = z_TC_.tensor().part(0, tokens_ * target.rows);
    const ConstTensor read_TI = parts.b || parts.a ? dropped(stream, adapter, x) : x;
    const kernels::Columns columns{tokens_, site_rows, target.first_row, target.rows};
    kernels::take_columns(stream, columns, dy, scale_, d_z_TC);
    if (parts.b) {
      kernels::linear_forward(stream, {down, read_TI, adapter.a, {}, h_TR, workspace});
      kernels::linear_backward_weight(stream, {up, d_z_TC, h_TR, gradient.b, {}, false, workspace});
    }
    if (!parts.a && !(parts.input && dx)) continue;
    kernels::linear_backward_input(stream, {up, d_z_TC, adapter.b, d_h_TR, false, workspace});
    if (parts.a) {
      kernels::linear_backward_weight(stream,
                                      {down, d_h_TR, read_TI, gradient.a, {}, false, workspace});
    }
    if (!parts.input || !dx) continue;
    const kernels::Dropout dropout = dropout_of(adapter);
    if (!dropout.active()) {
      kernels::linear_backward_input(stream, {down, d_h_TR, adapter.a, dx, true, workspace});
      continue;
    }
    // What was dropped for this target has been used up.
    const Tensor d_read_TI = dropped_TI_.tensor().part(0, x.numel);
    kernels::linear_backward_input(stream, {down, d_h_TR, adapter.a, d_read_TI, false, workspace});
    kernels::residual_add(stream, dx, d_read_TI, dropout, dx);
  }
}

}  // namespace sherd::model
