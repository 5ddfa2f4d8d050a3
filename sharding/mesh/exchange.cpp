#include "sharding/mesh/exchange.h"

#include "sharding/comm/communicator.h"

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
  Traffic traffic;
  traffic.add(name, Collective::kAllGather, DType::kF64,
              static_cast<std::int64_t>(count) * world_size, world_size);
  return traffic;
}

Exchange::Exchange(const Rank& rank, const std::string& name, int count)
    : rank_(&rank),
      communicator_(&rank.groups->world(Purpose::kReduce)),
      count_(count),
      rows_(rank, exchange_buffer(name, count, rank.world_size())),
      done_(rank.make_event()) {}

std::vector<std::span<const double>> Exchange::all_gather(const std::string& label,
                                                          std::span<const double> mine) {
  const auto* values = rows_.host().as<double>();
  const std::int64_t count = count_;
  CHECK(std::ssize(mine) == count, "exchange of {} numbers, made for {}", mine.size(), count);
  Stream& stream = rank_->reduce();
  std::copy(mine.begin(), mine.end(), rows_.host().as<double>() + rank_->rank * count);
  rows_.to_device(stream, rank_->rank * count, count);
  communicator_->all_gather(stream, label, rows_.device());
  rows_.to_host(stream);
  stream.record(*done_);
  rank_->compute().wait(*done_);
  rank_->compute().synchronize();
  communicator_->check_alive();
  std::vector<std::span<const double>> table;
  for (int r = 0; r < rank_->world_size(); ++r) {
    table.emplace_back(values + r * count, static_cast<std::size_t>(count));
  }
  return table;
}

}  // namespace sherd::sharding
