/// An all-gather of a few f64 numbers per rank, over the world or a group: step statistics, norms
/// of whole tensors, the state of a save. Every rank gets the same numbers and so makes the same
/// decision.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/mesh/traffic.h"

namespace sherd::sharding {

class Communicator;

/// Space for `count` numbers from each of `num_ranks` ranks.
BufferSpec exchange_buffer(const std::string& name, int count, int num_ranks);

/// What one exchange sends.
Traffic exchange_traffic(const std::string& name, int count, const Callers& callers);

class Exchange {
 public:
  /// Exchanges `count` f64 numbers per rank at a time, over the world or over the rank's group
  /// along `axes`.
  Exchange(const Rank& rank, const std::string& name, int count);
  Exchange(const Rank& rank, const std::string& name, int count, const AxisSet& axes);

  /// Every rank's numbers, valid until the next call; row r is from the group's rank r. Runs on the
  /// reduce stream, after the step's reductions. Blocks the caller, which counts as waiting of the
  /// compute stream.
  std::vector<std::span<const double>> all_gather(const std::string& label,
                                                  std::span<const double> mine);

  int count() const { return count_; }

 private:
  const Rank* rank_;
  Communicator* communicator_;
  int index_, num_ranks_;  // in the group
  int count_;
  MirroredBuffer rows_;
  std::unique_ptr<Event> done_;
};

/// An exchange of records: named fields that each rank sends to all others.
///
/// `Record` is a struct that consists of `double`s. Counts up to 2^53 and enumerators are exact.
template <class Record>
class Agreement {
 public:
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % sizeof(double) == 0 &&
                alignof(Record) == alignof(double));
  static constexpr int kCount = static_cast<int>(sizeof(Record) / sizeof(double));

  static BufferSpec buffer(const std::string& name, int world_size) {
    return exchange_buffer(name, kCount, world_size);
  }
  static Traffic traffic(const std::string& name, const Mesh& mesh) {
    return exchange_traffic(name, kCount, group_along(mesh, mesh.all_axes()));
  }

  Agreement(const Rank& rank, const std::string& name) : exchange_(rank, name, kCount) {}

  /// Every rank's record, in rank order; Exchange::all_gather.
  std::vector<Record> all_gather(const std::string& label, const Record& mine) {
    using Numbers = std::array<double, kCount>;
    std::vector<Record> records;
    for (const std::span<const double> row :
         exchange_.all_gather(label, std::bit_cast<Numbers>(mine))) {
      Numbers numbers;
      std::copy_n(row.begin(), kCount, numbers.begin());
      records.push_back(std::bit_cast<Record>(numbers));
    }
    return records;
  }

 private:
  Exchange exchange_;
};

}  // namespace sherd::sharding
