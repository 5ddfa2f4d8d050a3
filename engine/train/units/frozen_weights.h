/// The frozen parameters of a model: how they are loaded into their storage, and their digest.
///
/// They are stored in the compute type or quantised, full or sliced (sharding/zero/unit.h). The
/// loader writes f32 into staging memory, and each chunk is converted from there. Every rank reads
/// all of a quantised parameter, since the mean and the ranges of its scales cover the whole of it,
/// and keeps its slice. So codes are the same at every world size and stage.
///
/// If a matrix is cut over tensor ranks, each rank keeps the codes that the whole matrix has at its
/// part.
///
/// The digest covers the values before rounding. It doesn't depend on stage, world size or storage
/// type:
///
///   sum over all frozen parameters and their runs of 64 elements, mod 2^64, of
///   XXH3-64(elements as f32, seed = XXH3-64(parameter's name) + index of the run)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sharding/mesh/exchange.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/state/state.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

/// Digest of elements [first_element, first_element + count) of a parameter; the first one begins a
/// run of 64. The digest of all is the sum.
std::uint64_t digest_of_frozen(const std::string& parameter, std::int64_t first_element,
                               const float* values, std::int64_t count);
std::string digest_text(std::uint64_t digest);

/// What FrozenWeights acquires: nothing if all parameters are trained on all ranks.
std::vector<BufferSpec> frozen_weight_buffers(const std::vector<sharding::UnitPlan>& units,
                                              bool any, int world_size);

class FrozenWeights {
 public:
  /// `any`: whether the model has frozen parameters, perhaps only on other ranks of a pipeline.
  FrozenWeights(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
                bool any);

  bool any() const { return exchange_.has_value(); }
  void fill_initial_values(std::uint64_t seed);

  /// Fills pieces in host memory: f32 "param" tensors of all frozen parameters.
  using Load = std::function<void(const sharding::State& wanted)>;
  /// Before the first step. A collective: returns the digest of all that was loaded, on every rank.
  /// Gathered parameters are stale afterwards: publish the units.
  std::string load(const Load& load);

 private:
  struct Word {
    double low = 0.0, high = 0.0;  ///< 32 bits of a digest each
  };
  struct Part {
    const sharding::UnitState* unit = nullptr;
    const ParameterSpec* parameter = nullptr;
    int tensor = 0;  ///< index among frozen parameters
    std::int64_t first_element = 0, count = 0;
    Tensor at_rest;
    bool counts = false;  ///< in the digest, on this rank
  };
  void each_batch(const std::function<void(const std::vector<Part>&)>& use) const;
  void store(const std::vector<Part>& batch);
  std::uint64_t load_own(const Load& load);
  std::uint64_t digest_of_cut(const std::vector<sharding::StateTensor>& tensors,
                              const Load& load) const;
  bool holds_whole_digest(const sharding::UnitState& unit) const;

  /// Elements [first, first + count) of a quantised parameter, in the staging memory.
  struct Chunk {
    const sharding::UnitState* unit = nullptr;
    int parameter = 0;  ///< index among the unit's quantised parameters
    int tensor = 0;     ///< index among all frozen parameters
    std::int64_t first = 0, count = 0;

    const ParameterSpec& spec() const {
      return unit->plan().quantised[static_cast<std::size_t>(parameter)];
    }
  };
  /// The part of a chunk that this rank keeps.
  struct Kept {
    std::int64_t first = 0, count = 0;  ///< in the chunk
    sharding::QuantisedPiece at_rest;
    bool counts = false;
  };
  static std::vector<Kept> kept_of(const Chunk& chunk);
  void each_quantised(const std::function<void(const Chunk&)>& fill) const;
  void encode(const Chunk& whole, const std::function<void(const Chunk&)>& fill) const;

  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  sharding::MirroredBuffer staging_;
  Buffer scales_, codes_, scale_codes_;  // of a quantised parameter; codes of a chunk
  std::optional<sharding::Agreement<Word>> exchange_;

  bool holds_some_ = false;  // this rank

  friend std::vector<BufferSpec> frozen_weight_buffers(const std::vector<sharding::UnitPlan>&, bool,
                                                       int);
};

}  // namespace sherd::engine
