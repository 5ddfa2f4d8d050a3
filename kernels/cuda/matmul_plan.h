/// Describes one matmul to cuBLASLt, with its algorithm: the table row measured for its key
/// (kernels/device_common/matmul_table.h), or the heuristic's first answer.
#pragma once

#include <cublasLt.h>

#include <memory>

#include "core/cuda_device.h"
#include "kernels/cuda/matmul_tuning.h"

namespace sherd::kernels::cuda {

void check_blas(cublasStatus_t status, const char* call);
/// Lives as long as the process: destroying handles at exit races with the driver's shutdown.
cublasLtHandle_t handle_of_device(int device);

struct DestroyBlas {
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
template <class T>
using OwnedBlas = std::unique_ptr<std::remove_pointer_t<T>, DestroyBlas>;

/// Pointers to bias and GELU's input are set in it before each launch, so only one thread may use
/// it.
struct PlannedMatmul {
  OwnedBlas<cublasLtMatmulDesc_t> operation;
  OwnedBlas<cublasLtMatrixLayout_t> a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
};
/// Errors  UsageError: cuBLASLt can't multiply this. DataError: it refuses the algorithm of the
///         table's row.
PlannedMatmul plan_matmul(int device, const device_common::MatmulKey& key);
/// The same without the table, for matmuls that differ in one size only: the columns of D, or the
/// depth if B is transposed (kernels/cuda/expert_products.h). `key` has one value of it.
PlannedMatmul plan_matmul_of_any_rows(int device, const device_common::MatmulKey& key);
/// Gives such a matmul its size.
void set_matmul_rows(const PlannedMatmul& matmul, const device_common::MatmulKey& key,
                     std::int64_t rows);
void launch_matmul(CudaStream& stream, const PlannedMatmul& matmul,
                   const device_common::MatmulKey& key, const MatmulOperands& operands,
                   void* workspace);

}  // namespace sherd::kernels::cuda
