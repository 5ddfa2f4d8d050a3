#include "engine/train/expert_statistics.h"

#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

constexpr const char* kName = "expert counts";

std::int64_t numel_of(const TrainingOptions& options) {
  return options.model.num_layers * (options.model.moe.experts + 2);
}

BufferSpec totals_buffer(const TrainingOptions& options) {
  return {"expert_totals", Category::kWorkspace, DType::kF64, numel_of(options),
          kAlways,         Home::kMirrored};
}

}  // namespace

std::vector<BufferSpec> ExpertStatistics::buffers(const TrainingOptions& options, int world_size) {
  if (!options.model.moe.active()) return {};
  return {totals_buffer(options),
          sharding::exchange_buffer(kName, static_cast<int>(numel_of(options)), world_size)};
}

sharding::Traffic ExpertStatistics::traffic(const TrainingOptions& options,
                                            const sharding::Mesh& mesh) {
  if (!options.model.moe.active()) return {};
  return sharding::exchange_traffic(kName, static_cast<int>(numel_of(options)),
                                    group_along(mesh, mesh.all_axes()));
}

ExpertStatistics::ExpertStatistics(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options), rank_(rank) {
  if (!options.model.moe.active()) return;
  totals_.emplace(rank, totals_buffer(options));
  exchange_.emplace(rank, kName, static_cast<int>(numel_of(options)));
}

void ExpertStatistics::begin() {
  if (totals_) kernels::fill_zero(rank_.compute(), totals_->device());
}

std::shared_ptr<const ExpertReport> ExpertStatistics::add_up() {
  if (!totals_) return nullptr;
  totals_->to_host(rank_.compute());
  rank_.compute().synchronize();
  const std::span<const double> own(totals_->host().as<double>(),
                                    static_cast<std::size_t>(totals_->host().numel));
  std::vector<double> sums(own.size());
  for (const std::span<const double> of_rank : exchange_->all_gather(kName, own)) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  const model::ModelShape& shape = options_.model;
  const auto experts = static_cast<std::size_t>(shape.moe.experts);
  const auto counted = std::make_shared<ExpertReport>();
  ExpertReport& report = *counted;
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
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
