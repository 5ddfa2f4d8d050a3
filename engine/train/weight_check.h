/// Compares copies of the weights, to find memory that has changed them (training.weight_hash_interval).
///
/// Ranks hash what they hold of each parameter and exchange the hashes. Where several ranks hold the
/// same elements in the same form, their hashes must be equal:
///
///   stages 0-2       the full parameters in compute type, on all ranks of the ZeRO group; at stage 0
///                    of 16-bit compute the f32 masters, too
///   replicas         also their slices at stage 3, or the bytes of these, and f32 masters; if they train
///                    apart, only what is frozen
///   tensor ranks     norms, biases and key/value heads that several of them hold
///   pipelines        a tied matrix at both ends
///   adapters         the frozen base, quantised or not
///
/// What only one rank holds can't be compared: slices of stage 3 and masters of stages 1 and 2
/// without replicas. Moments aren't compared. At stage 3, tensor ranks' copies are compared if they
/// lie at the same place of their slices.
///
/// Hash     XXH3-64 of the elements' bytes, over each stretch that is contiguous in memory. The host
///          hashes; a device's own memory is copied to the host in chunks of `staging`
/// Order    after the backward of a step, before its update: so it covers the parameters that the
///          step was computed with, before the next gather replaces them
/// Cost     one pass over the weights that a rank holds, and 32 bytes for each stretch and rank
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/sharded_model.h"

namespace sherd::engine {

class WeightCheck {
 public:
  WeightCheck(const TrainingOptions& options, ShardedModel& model);

  static constexpr std::int64_t kStagingBytes = 4 << 20;
  /// What a rank acquires if its device has its own memory.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options);

  /// Sends a row of numbers to all ranks, and returns every rank's.
  using Exchange = std::function<std::vector<std::vector<double>>(std::span<const double> mine)>;
  /// A collective. `step` counts from 0; a row has `count` numbers, at least 5.
  /// Errors   TrainingError on every rank, if copies differ: it names the step, the parameter, the
  ///          ranks whose copies differ from most others, and the last step at which all agreed.
  void run(std::int64_t step, int count, const Exchange& exchange);

 private:
  struct Entry {
    double what = 0.0;             ///< 8 * index of the parameter + kind
    double place = 0.0;            ///< hash of the elements' place in the whole parameter: 52 bits
    double low = 0.0, high = 0.0;  ///< 32 bits of the elements' hash each
  };
  /// kCoded: a part of a whole unit; the parameter is one of it.
  enum class Kind { kFull, kMaster, kFrozen, kQuantised, kCoded };

  std::vector<Entry> own_entries() const;
  void add_bytes(const sharding::UnitState& unit, std::vector<Entry>& entries) const;
  Entry entry_of(const ParameterSpec& parameter, Kind kind, const Box& box, std::int64_t first,
                 const Tensor& values) const;
  static std::vector<std::vector<Entry>> all_entries(const std::vector<Entry>& own, int count,
                                                     const Exchange& exchange);
  int replica_of(const Entry& entry, int rank) const;
  std::string name_of(double what) const;

  std::uint64_t hash_of(const Tensor& values) const;

  ShardedModel& model_;
  Buffer staging_;                           ///< on the host, of a device with its own memory
  std::optional<std::int64_t> last_agreed_;  ///< step, counted from 1
};

}  // namespace sherd::engine
