/// A matmul as it is described to the fake cuBLASLt (blas.cpp), and its computation on the CPU.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "tests/fake_cuda/machine.h"

namespace fake_blas {

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale, bias_type = CUDA_R_32F;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_rows = 0;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
};

struct Sizes {
  std::int64_t m = 0, n = 0, k = 0;
};
/// Whether A, B and D fit one another.
bool fit(const Description& how, const Layout& a, const Layout& b, const Layout& d, Sizes& sizes);

struct Operands {
  const void *a, *b, *c;  ///< c: what is added to; null: nothing
  void* d;
  sherd::DType in, out;
};
void compute(const Description& how, const Sizes& sizes, const Operands& operands);

/// All that a matmul may touch.
std::vector<fake_cuda::Access> accesses(const Description& how, const Sizes& sizes,
                                        const Operands& operands, void* scratch,
                                        std::size_t scratch_bytes);

sherd::DType dtype_of_type(cudaDataType_t type);

}  // namespace fake_blas
