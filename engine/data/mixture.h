/// Which source each sequence of a training run comes from, by weights: a pure function, so a run
/// resumes from one integer, and a longer run begins with the same sequences.
///
///   block    sequences come in blocks of 1,024. In each, source i has c_i of them: its share of
///            the weights' sum, rounded to whole numbers by largest remainder (ties: the lowest
///            index).
///   order    the n-th sequence of a block, from 0, is of the source with the largest
///            c_i (n + 1) - 1024 * (its sequences so far in the block); ties: the lowest index.
///   number   a source's sequences are used in its own order: at(n).number counts them from 0.
///
/// A prefix of n sequences has less than one sequence of a source more than n c_i / 1024, and less
/// than max(1, sources - 1) fewer (at most 1.2 in trials with up to 40 sources).
///
/// Source   weighted sampling as in Megatron's blending, with (n + 1) in place of max(n, 1).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace sherd::data {

class Mixture {
 public:
  static constexpr std::int64_t kBlock = 1024;

  /// At least one weight is positive.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    int source = 0;
    std::int64_t number = 0;  ///< of this source's sequences
  };
  Place at(std::int64_t sequence) const;
  /// How many of the first `num_sequences` sequences are of this source.
  std::int64_t count(int source, std::int64_t num_sequences) const;

  /// Of each source, in a block.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  /// A source with a positive weight and no sequence; -1: none.
  int without_sequences() const { return without_sequences_; }
  /// The smallest weight that gives source `source` one, if the others stay.
  double smallest_weight(int source) const;

 private:
  std::vector<double> weights_;
  std::vector<std::int64_t> counts_;
  int without_sequences_ = -1;
  std::array<std::int32_t, kBlock> source_{}, number_{};  ///< of each sequence of a block
};

}  // namespace sherd::data
