#include "engine/train/answer_statistics.h"

namespace sherd::engine {
namespace {

constexpr const char* kName = "answers";

}  // namespace

AnswerStatistics::AnswerStatistics(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options) {
  if (options.preference.active()) exchange_.emplace(rank, kName, AnswerSums::kNumbers);
}

std::vector<BufferSpec> AnswerStatistics::buffers(const TrainingOptions& options, int world_size) {
  if (!options.preference.active()) return {};
  return {sharding::exchange_buffer(kName, AnswerSums::kNumbers, world_size)};
}

sharding::Traffic AnswerStatistics::traffic(const TrainingOptions& options,
                                            const sharding::Mesh& mesh) {
  if (!options.preference.active()) return {};
  return sharding::exchange_traffic(kName, AnswerSums::kNumbers,
                                    sharding::group_along(mesh, mesh.all_axes()));
}

std::shared_ptr<const PreferenceReport> AnswerStatistics::combine(const AnswerSums* own) {
  const std::vector<double> mine = own != nullptr ? own->numbers() : AnswerSums().numbers();
  AnswerSums all;
  for (const std::span<const double> row : exchange_->all_gather(kName, mine)) all.add(row);
  return std::make_shared<const PreferenceReport>(report_of(options_.preference, all));
}

}  // namespace sherd::engine
