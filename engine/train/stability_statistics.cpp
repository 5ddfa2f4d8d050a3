#include "engine/train/stability_statistics.h"

#include <algorithm>

namespace sherd::engine {
namespace {

constexpr const char* kName = "stability";

bool has_z_loss(const TrainingOptions& options) {
  return options.model.z_loss > 0.0;
}

// What a rank sends: the digits of its sum of z-losses.
int count_of(const TrainingOptions& options) {
  return has_z_loss(options) ? ExactSum::kNumbers : 0;
}

}  // namespace

std::vector<BufferSpec> StabilityStatistics::buffers(const TrainingOptions& options,
                                                     int world_size) {
  const int count = count_of(options);
  if (count == 0) return {};
  return {sharding::exchange_buffer(kName, count, world_size)};
}

sharding::Traffic StabilityStatistics::traffic(const TrainingOptions& options,
                                               const sharding::Mesh& mesh) {
  const int count = count_of(options);
  if (count == 0) return {};
  return sharding::exchange_traffic(kName, count, group_along(mesh, mesh.all_axes()));
}

StabilityStatistics::StabilityStatistics(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options), rank_(rank) {
  const int count = count_of(options);
  if (count > 0) exchange_.emplace(rank, kName, count);
}

std::shared_ptr<const StabilityReport> StabilityStatistics::combine(const ExactSum& z_loss_sum,
                                                                    std::int64_t num_targets) {
  if (!active()) return nullptr;
  std::vector<double> own;
  if (has_z_loss(options_)) {
    // Tensor ranks have the same tokens.
    const ExactSum counted = rank_.contributes_tokens() ? z_loss_sum : ExactSum();
    const ExactSum::Numbers numbers = counted.numbers();
    own.insert(own.end(), numbers.begin(), numbers.end());
  }
  const auto report = std::make_shared<StabilityReport>();
  ExactSum sum;
  for (const std::span<const double> of_rank : exchange_->all_gather(kName, own)) {
    if (has_z_loss(options_)) sum.add(of_rank.first(ExactSum::kNumbers));
  }
  if (has_z_loss(options_)) {
    report->z_loss =
        sum.value() / static_cast<double>(std::max<std::int64_t>(num_targets, 1));
  }
  return report;
}

}  // namespace sherd::engine
