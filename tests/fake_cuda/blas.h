/// cuBLASLt as far as kernels/cuda/matmul_plan.cpp calls it, on the fake machine: matmuls are work of its streams, with
/// the CPU's bits. Its heuristic offers algorithms 1, 2, ... in that order: each multiplies alike, and takes as many
/// milliseconds of the machine's clock as `takes_ms` says. Number 3 splits sums, where the preference allows it.
///
/// Refused as cuBLASLt refuses it: operands that are less aligned than the heuristic was given, less workspace than an
/// algorithm needs, layouts that don't fit one another, attributes of another size.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace fake_cuda {

struct Matmul {
  std::int64_t m = 0, n = 0, k = 0;
  int algorithm = 0;
};
struct Blas {
  int num_algorithms = 4;
  std::map<int, int> takes_ms{};  ///< 1 where not said
  int version = 130100;
  std::map<int, std::int64_t> most_columns{};  ///< that an algorithm multiplies; any where not said
};
void set_blas(const Blas& blas);
/// All since `set_blas`, in the order of the calls.
std::vector<Matmul> matmuls();
/// How often its heuristic has been asked since: once for each matmul that is planned.
int questions();

}  // namespace fake_cuda
