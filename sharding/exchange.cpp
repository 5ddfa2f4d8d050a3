#include "sharding/exchange.h"

#include <algorithm>

namespace sherd::sharding {

BufferSpec exchange_buffer(const std::string& name, int count, int world_size) {
  return {"exchange." + name, Category::kCommunication, DType::kF64,
          static_cast<std::int64_t>(count) * world_size};
}

Traffic exchange_traffic(const std::string& name, int count, int world_size) {
  Traffic traffic(world_size);
  traffic.add(name, Collective::kAllGather, DType::kF64,
              static_cast<std::int64_t>(count) * world_size);
  return traffic;
}

Exchange::Exchange(const Rank& rank, const std::string& name, int count)
    : rank_(&rank),
      rows_(rank.memory->acquire(exchange_buffer(name, count, rank.world_size))),
      done_(rank.make_event()) {}

std::vector<std::vector<double>> Exchange::all(const std::string& what,
                                               std::span<const double> mine) {
  const Tensor rows = rows_.tensor();
  const auto count = rows.numel / rank_->world_size;
  CHECK(static_cast<std::int64_t>(mine.size()) == count, "exchange of {} numbers, made for {}",
        mine.size(), count);
  auto* values = rows.as<double>();
  std::copy(mine.begin(), mine.end(), values + rank_->rank * count);
  rank_->reduce_communicator->all_gather(rank_->reduce(), what, rows);
  rank_->reduce().record(*done_);
  rank_->compute().wait(*done_);
  std::vector<std::vector<double>> table;
  for (int r = 0; r < rank_->world_size; ++r) {
    table.emplace_back(values + r * count, values + (r + 1) * count);
  }
  return table;
}

}  // namespace sherd::sharding
