/// A handful of numbers from every rank to every rank: the one small collective of a step, by which
/// all ranks reach the same verdict.
#pragma once

#include <span>
#include <vector>

#include "sharding/rank.h"
#include "sharding/traffic.h"

namespace sherd::sharding {

/// Room for `count` numbers of every rank.
BufferSpec exchange_buffer(const std::string& name, int count, int world_size);

/// What one exchange sends.
Traffic exchange_traffic(const std::string& name, int count, int world_size);

class Exchange {
 public:
  /// Exchanges `count` f64 numbers per rank at a time.
  Exchange(const Rank& rank, const std::string& name, int count);

  /// Every rank's numbers, row r holding those of rank r. Runs on the reduce stream, behind the
  /// step's reductions; blocks the caller (counted as the compute stream's waiting).
  std::vector<std::vector<double>> all(const std::string& what, std::span<const double> mine);

 private:
  const Rank* rank_;
  Buffer rows_;
  std::unique_ptr<Event> done_;
};

}  // namespace sherd::sharding
