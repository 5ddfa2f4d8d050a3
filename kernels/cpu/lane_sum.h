/// Sums of floats over fixed lanes, so that they vectorise without the compiler choosing an order:
/// element i of a row is added to lane i mod 32, and the lanes are added pairwise at the end.
#pragma once

#include "kernels/cpu/vectors.h"

namespace sherd::kernels::cpu {

/// One running sum. All calls but the last must add a multiple of 32 elements.
class LaneSum {
 public:
  /// Adds term(i) for 0 <= i < count, where `vector_term(i)` is the same for elements i .. i + 7.
  template <class VectorTerm, class Term>
  void add(int count, VectorTerm&& vector_term, Term&& term) {
    Float8 a = lane_[0], b = lane_[1], c = lane_[2], d = lane_[3];
    int i = 0;
    for (; i + 32 <= count; i += 32) {
      a += vector_term(i);
      b += vector_term(i + 8);
      c += vector_term(i + 16);
      d += vector_term(i + 24);
    }
    lane_[0] = a, lane_[1] = b, lane_[2] = c, lane_[3] = d;
    for (const int begin = i; i < count; ++i) lane_[(i - begin) / 8][(i - begin) % 8] += term(i);
  }

  void add_values(const float* x, int count) {
    add(
        count, [=](int i) { return load8(x + i); }, [=](int i) { return x[i]; });
  }
  void add_squared_differences(const float* x, float mean, int count) {
    add(
        count,
        [=](int i) {
          const Float8 difference = load8(x + i) - mean;
          return difference * difference;
        },
        [=](int i) { return (x[i] - mean) * (x[i] - mean); });
  }

  float total() const {
    const Float8 eight = (lane_[0] + lane_[1]) + (lane_[2] + lane_[3]);
    return ((eight[0] + eight[1]) + (eight[2] + eight[3])) +
           ((eight[4] + eight[5]) + (eight[6] + eight[7]));
  }

 private:
  Float8 lane_[4] = {};
};

}  // namespace sherd::kernels::cpu
