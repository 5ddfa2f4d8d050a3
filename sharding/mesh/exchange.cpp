#include "sharding/mesh/exchange.h"

#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"

#include <algorithm>

namespace sherd::sharding {

BufferSpec exchange_buffer(const std::string& name, int count, int num_ranks) {
  return {"exchange." + name,
          Category::kCommunication,
          DType::kF64,
          static_cast<std::int64_t>(count) * num_ranks,
          kAlways,
          Home::kMirrored};
}

Traffic exchange_traffic(const std::string& name, int count, const Callers& callers) {
  Traffic traffic;
  traffic.add(name, Collective::kAllGather, DType::kF64,
              static_cast<std::int64_t>(count) * callers.count, callers);
  return traffic;
}

Exchange::Exchange(const Rank& rank, const std::string& name, int count)
    : Exchange(rank, name, count, rank.mesh.all_axes()) {}

Exchange::Exchange(const Rank& rank, const std::string& name, int count, const AxisSet& axes)
    : rank_(&rank),
      communicator_(&rank.groups->get(axes, Purpose::kReduce)),
      index_(rank.mesh.index_in_group(rank.rank, axes)),
      num_ranks_(rank.mesh.degree(axes)),
      count_(count),
      rows_(rank, exchange_buffer(name, count, num_ranks_)),
      done_(counted(rank.make_event(), wait_kind(rank.mesh, axes))) {}

std::vector<std::span<const double>> Exchange::all_gather(const std::string& label,
                                                          std::span<const double> mine) {
  const auto* values = rows_.host().as<double>();
  const std::int64_t count = count_;
  SHERD_CHECK(std::ssize(mine) == count, "exchange of {} numbers, made for {}", mine.size(), count);
  Stream& stream = rank_->reduce();
  std::copy(mine.begin(), mine.end(), rows_.host().as<double>() + index_ * count);
  rows_.to_device(stream, index_ * count, count);
  communicator_->all_gather(stream, label, rows_.device());
  rows_.to_host(stream);
  stream.record(*done_);
  rank_->compute().wait(*done_);
  rank_->compute().synchronize();
  communicator_->check_alive();
  std::vector<std::span<const double>> table;
  for (int r = 0; r < num_ranks_; ++r) {
    table.emplace_back(values + r * count, static_cast<std::size_t>(count));
  }
  return table;
}

}  // namespace sherd::sharding
