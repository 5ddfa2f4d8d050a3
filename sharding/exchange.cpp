#include "sharding/exchange.h"

#include <algorithm>

namespace sherd::sharding {

BufferSpec exchange_buffer(const std::string& name, int count, int world_size) {
  return {"exchange." + name,
          Category::kCommunication,
          DType::kF64,
          static_cast<std::int64_t>(count) * world_size,
          kAlways,
          true};
}

Traffic exchange_traffic(const std::string& name, int count, int world_size) {
  Traffic traffic(world_size);
  traffic.add(name, Collective::kAllGather, DType::kF64,
              static_cast<std::int64_t>(count) * world_size);
  return traffic;
}

Exchange::Exchange(const Rank& rank, const std::string& name, int count)
    : rank_(&rank),
      rows_(rank, exchange_buffer(name, count, rank.world_size)),
      done_(rank.make_event()) {}

std::vector<std::vector<double>> Exchange::all(const std::string& what,
                                               std::span<const double> mine) {
  const auto* values = rows_.host().as<double>();
  const auto count = rows_.host().numel / rank_->world_size;
  CHECK(std::ssize(mine) == count, "exchange of {} numbers, made for {}", mine.size(), count);
  Stream& stream = rank_->reduce();
  std::copy(mine.begin(), mine.end(), rows_.host().as<double>() + rank_->rank * count);
  rows_.to_device(stream, rank_->rank * count, count);
  rank_->reduce_communicator->all_gather(stream, what, rows_.device());
  rows_.to_host(stream);
  stream.record(*done_);
  rank_->compute().wait(*done_);
  rank_->compute().synchronize();
  std::vector<std::vector<double>> table;
  for (int r = 0; r < rank_->world_size; ++r) {
    table.emplace_back(values + r * count, values + (r + 1) * count);
  }
  return table;
}

}  // namespace sherd::sharding
