#include "engine/train/stability_statistics.h"

#include <algorithm>
#include <limits>

#include "kernels/attention.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

constexpr const char* kName = "stability";

// Numbers of a rank's sums of further losses.
std::size_t numbers_of_losses(const TrainingOptions& options) {
  return static_cast<std::size_t>(options.model.num_further_losses()) * ExactSum::kNumbers;
}

std::int64_t num_heads(const TrainingOptions& options) {
  return options.model.max_attention_logit ? options.model.num_blocks() * options.model.query_heads
                                           : 0;
}

// What a rank sends: the digits of its sums of further losses, then the largest score of every head.
int count_of(const TrainingOptions& options) {
  return static_cast<int>(numbers_of_losses(options)) + static_cast<int>(num_heads(options));
}

BufferSpec maxima_buffer(const TrainingOptions& options) {
  return {"attention_maxima", Category::kWorkspace, DType::kI32, num_heads(options), kAlways,
          Home::kMirrored};
}

}  // namespace

std::vector<BufferSpec> StabilityStatistics::buffers(const TrainingOptions& options,
                                                     int world_size) {
  const int count = count_of(options);
  if (count == 0) return {};
  std::vector<BufferSpec> buffers = {sharding::exchange_buffer(kName, count, world_size)};
  if (num_heads(options) > 0) buffers.push_back(maxima_buffer(options));
  return buffers;
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
  if (num_heads(options) > 0) maxima_.emplace(rank, maxima_buffer(options));
}

void StabilityStatistics::begin() {
  if (maxima_) kernels::fill_zero(rank_.compute(), maxima_->device());
}

std::vector<double> StabilityStatistics::own_numbers(std::span<const ExactSum> loss_sums) {
  std::vector<double> own;
  for (const ExactSum& sum : loss_sums) {
    // Tensor ranks have the same tokens.
    const ExactSum counted = rank_.contributes_tokens() ? sum : ExactSum();
    const ExactSum::Numbers numbers = counted.numbers();
    own.insert(own.end(), numbers.begin(), numbers.end());
  }
  own.resize(numbers_of_losses(options_));  // zeros of a rank without the head
  if (!maxima_) return own;
  maxima_->to_host(rank_.compute());
  rank_.compute().synchronize();
  const auto* words = maxima_->host().as<std::int32_t>();
  for (std::int64_t i = 0; i < maxima_->host().numel; ++i) {
    own.push_back(
        static_cast<double>(kernels::number_of_ordered(static_cast<std::uint32_t>(words[i]))));
  }
  return own;
}

std::shared_ptr<const StabilityReport> StabilityStatistics::combine(
    std::span<const ExactSum> loss_sums, std::span<const std::int64_t> num_targets) {
  if (!active()) return nullptr;
  const std::size_t first_head = numbers_of_losses(options_);
  const auto heads = static_cast<std::size_t>(num_heads(options_));
  std::vector<float> largest(heads, -std::numeric_limits<float>::infinity());
  std::vector<ExactSum> sums(static_cast<std::size_t>(options_.model.num_further_losses()));
  for (const std::span<const double> of_rank :
       exchange_->all_gather(kName, own_numbers(loss_sums))) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].add(of_rank.subspan(i * ExactSum::kNumbers, ExactSum::kNumbers));
    }
    for (std::size_t i = 0; i < heads; ++i) {
      largest[i] = std::max(largest[i], static_cast<float>(of_rank[first_head + i]));
    }
  }
  const auto report = std::make_shared<StabilityReport>();
  if (!sums.empty()) {
    double mean = 0.0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      mean += sums[i].value() / static_cast<double>(std::max<std::int64_t>(num_targets[i], 1));
    }
    mean /= static_cast<double>(sums.size());
    const model::ModelShape& shape = options_.model;
    (shape.mtp_layers > 0 ? report->mtp_loss
     : shape.teacher      ? report->teacher_divergence
                          : report->z_loss) = mean;
  }
  const auto per_layer = static_cast<std::ptrdiff_t>(options_.model.query_heads);
  for (auto layer = largest.begin(); layer != largest.end(); layer += per_layer) {
    report->max_logits.emplace_back(layer, layer + per_layer);
  }
  return report;
}

StabilityReport::Largest StabilityReport::largest_logit() const {
  Largest largest{.value = -std::numeric_limits<float>::infinity()};
  for (std::size_t layer = 0; layer < max_logits.size(); ++layer) {
    for (std::size_t head = 0; head < max_logits[layer].size(); ++head) {
      if (max_logits[layer][head] <= largest.value) continue;
      largest = {static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head),
                 max_logits[layer][head]};
    }
  }
  return largest;
}

}  // namespace sherd::engine
