#include "engine/saving/dealt_errors.h"

#include <algorithm>
#include <set>
#include <vector>

#include "checkpoint/reader.h"
#include "optim/compressed_sum.h"

namespace sherd::engine {

void deal_out_errors(const checkpoint::Checkpoint& checkpoint, const TrainingOptions& options,
                     const ShardedModel& model, int saved_replicas, Tensor reading) {
  std::set<std::string> kinds;
  std::int64_t numel = 0;
  for (const optim::MomentPiece& piece : model.compressed_sum()->own_pieces()) {
    kinds.insert(piece.kind);
    numel += piece.data.numel;
  }
  std::vector<sharding::StateTensor> tensors = state_tensors(options, saved_replicas);
  std::erase_if(tensors, [&](const auto& tensor) { return !kinds.contains(tensor.kind); });
  std::vector<float> loaded(static_cast<std::size_t>(numel));
  for (int replica = 0; replica < saved_replicas; ++replica) {
    const std::vector<sharding::StatePiece> held =
        error_pieces(options, model, replica, tensors, Pieces::kHeld);
    sharding::State wanted{tensors, held};
    std::int64_t first = 0;
    for (sharding::StatePiece& piece : wanted.pieces) {
      piece.data.data = loaded.data() + first;
      first += piece.count;
    }
    checkpoint::load(checkpoint, wanted, checkpoint::Match::kListedKinds, reading);
    for (std::size_t i = 0; i < held.size(); ++i) {
      auto* const sum = held[i].data.as<float>();
      const auto* const more = wanted.pieces[i].data.as<float>();
      for (std::int64_t k = 0; k < held[i].count; ++k) {
        sum[k] = replica == 0 ? more[k] : sum[k] + more[k];
      }
    }
  }
  const auto replicas = static_cast<float>(options.compression->num_replicas);
  for (const optim::MomentPiece& piece : model.compressed_sum()->own_pieces()) {
    auto* const sum = piece.data.as<float>();
    for (std::int64_t k = 0; k < piece.data.numel; ++k) sum[k] /= replicas;
  }
}

}  // namespace sherd::engine
