#include "engine/train/expert_statistics.h"

#include <algorithm>
#include <numeric>

#include "kernels/pointwise.h"
#include "kernels/router.h"

namespace sherd::engine {
namespace {

constexpr const char* kStatisticsName = "expert counts";

std::int64_t numel_of(const TrainingOptions& options) {
  return options.model.num_blocks() * (options.model.moe.experts + 2);
}

BufferSpec totals_buffer(const TrainingOptions& options) {
  return {"expert_totals", Category::kWorkspace, DType::kF64, numel_of(options),
          kAlways,         Home::kMirrored};
}

bool needs_previous(const TrainingOptions& options) {
  return options.model.moe.active() &&
         options.model.moe.scope == kernels::BalanceScope::kPreviousStep;
}

BufferSpec previous_buffer(const TrainingOptions& options) {
  return {"expert_counts_before",
          Category::kWorkspace,
          DType::kI32,
          options.model.num_blocks() * (options.model.moe.experts + 1),
          kAlways,
          Home::kMirrored};
}

}  // namespace

std::vector<BufferSpec> ExpertStatistics::buffers(const TrainingOptions& options, int world_size) {
  if (!options.model.moe.active()) return {};
  std::vector<BufferSpec> buffers = {
      totals_buffer(options),
      sharding::exchange_buffer(kStatisticsName, static_cast<int>(numel_of(options)), world_size)};
  if (needs_previous(options)) buffers.push_back(previous_buffer(options));
  return buffers;
}

sharding::Traffic ExpertStatistics::traffic(const TrainingOptions& options,
                                            const sharding::Mesh& mesh) {
  if (!options.model.moe.active()) return {};
  return sharding::exchange_traffic(kStatisticsName, static_cast<int>(numel_of(options)),
                                    group_along(mesh, mesh.all_axes()));
}

ExpertStatistics::ExpertStatistics(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options), rank_(rank) {
  if (!options.model.moe.active()) return;
  totals_.emplace(rank, totals_buffer(options));
  exchange_.emplace(rank, kStatisticsName, static_cast<int>(numel_of(options)));
  if (needs_previous(options)) previous_.emplace(rank, previous_buffer(options));
}

void ExpertStatistics::begin() {
  if (totals_) kernels::fill_zero(rank_.compute(), totals_->device());
}

void ExpertStatistics::correct_router(const sharding::UnitState& unit,
                                      const ExpertReport& report) const {
  const float rate = static_cast<float>(options_.model.moe.bias_update_rate);
  if (rate == 0.0f) return;
  const auto layer =
      std::ranges::find(report.layers, unit.spec().id.layer, &ExpertReport::Layer::layer);
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      if (!unit.spec().parameters[piece.parameter].name.ends_with(".moe.router.bias")) continue;
      kernels::router_correction(rank_.compute(),
                                 {.counts = layer->counts,
                                  .first = piece.first_element,
                                  .rate = rate,
                                  .bias = slice.part(piece.position, piece.count)});
    }
  }
}

ConstTensor ExpertStatistics::previous() const {
  return previous_ && !previous_counts_.empty() ? ConstTensor(previous_->device()) : ConstTensor{};
}

void ExpertStatistics::set_previous(std::vector<std::int64_t> counts) {
  if (!previous_ || counts.empty()) return;
  if (std::ssize(counts) != previous_->host().numel) {
    throw DataError("the checkpoint counts tokens of {} experts, layers and sums, not of {}.",
                    counts.size(), previous_->host().numel);
  }
  previous_counts_ = std::move(counts);
  std::ranges::transform(previous_counts_, previous_->host().as<std::int32_t>(),
                         [](std::int64_t count) { return static_cast<std::int32_t>(count); });
  previous_->to_device(rank_.compute());
}

void ExpertStatistics::set_previous(const ExpertReport& report) {
  if (!previous_) return;
  const auto per_layer = static_cast<std::size_t>(options_.model.moe.experts) + 1;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(previous_->host().numel), 0);
  for (const ExpertReport::Layer& layer : report.layers) {
    const auto first = counts.begin() + layer.layer * static_cast<std::ptrdiff_t>(per_layer);
    std::ranges::copy(layer.counts, first);
    first[static_cast<std::ptrdiff_t>(per_layer) - 1] =
        std::accumulate(layer.counts.begin(), layer.counts.end(), std::int64_t{0}) /
        options_.model.moe.per_token;
  }
  set_previous(std::move(counts));
}

std::shared_ptr<const ExpertReport> ExpertStatistics::add_up() {
  if (!totals_) return nullptr;
  totals_->to_host(rank_.compute());
  rank_.compute().synchronize();
  const auto* const counts = totals_->host().as<double>();
  std::vector<double> own(counts, counts + totals_->host().numel), sums(own.size());
  // Tensor ranks have the same tokens, and decide alike.
  if (!rank_.contributes_tokens()) std::ranges::fill(own, 0.0);
  for (const std::span<const double> of_rank : exchange_->all_gather(kStatisticsName, own)) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  const model::ModelShape& shape = options_.model;
  const auto experts = static_cast<std::size_t>(shape.moe.experts);
  const auto counted = std::make_shared<ExpertReport>();
  ExpertReport& report = *counted;
  for (std::int64_t layer = 0; layer < shape.num_blocks(); ++layer) {
    if (!shape.has_experts(layer)) continue;
    const auto* const first = sums.data() + static_cast<std::size_t>(layer) * (experts + 2);
    report.layers.push_back({layer, {first, first + experts}});
    report.balance_loss += first[experts];
    report.z_loss += first[experts + 1];
  }
  const std::int64_t groups =
      shape.moe.scope == kernels::BalanceScope::kSequence ? shape.sequences : 1;
  const auto all_groups =
      static_cast<double>(groups * options_.num_micro_steps * rank_.data_degree());
  report.balance_loss /= all_groups;
  report.z_loss /= all_groups;
  return counted;
}

}  // namespace sherd::engine
