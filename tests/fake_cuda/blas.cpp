#include "tests/fake_cuda/blas.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "tests/fake_cuda/blas_matmul.h"
#include "tests/fake_cuda/machine.h"

namespace {

using namespace fake_blas;

std::mutex mutex;
fake_cuda::Blas blas;
std::vector<fake_cuda::Matmul> calls;
int asked = 0;

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK, alignment = 256;
};

// The contents of a cublasLtMatmulAlgo_t: the attributes by their number, and what the heuristic was given.
constexpr int kSplit = CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
              kScheme = CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
constexpr int kNumAttributes = 9;
struct Algorithm {
  std::uint32_t attributes[kNumAttributes];
  std::uint32_t alignment;  // 0: not given
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
Algorithm of(const cublasLtMatmulAlgo_t& algorithm) {
  Algorithm x;
  std::memcpy(&x, &algorithm, sizeof x);
  return x;
}
void put(const Algorithm& x, cublasLtMatmulAlgo_t& algorithm) {
  algorithm = {};
  std::memcpy(&algorithm, &x, sizeof x);
}

template <class T, class Handle>
T& as(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}
template <class T, class Handle>
const T& as_const(Handle handle) {
  return *reinterpret_cast<const T*>(handle);
}

// A value of an attribute, if it is as large as it is there.
template <class T>
cublasStatus_t take(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool multiplies(const Algorithm& algorithm, const Sizes& sizes) {
  std::lock_guard lock(mutex);
  const auto most = blas.most_columns.find(static_cast<int>(algorithm.attributes[0]));
  return most == blas.most_columns.end() || sizes.n <= most->second;
}

std::size_t workspace_of(const Algorithm& algorithm, const Sizes& sizes) {
  const std::uint32_t parts = algorithm.attributes[kSplit];
  return parts > 1 ? static_cast<std::size_t>(parts * sizes.m * sizes.n * 4) : 0;
}

}  // namespace

namespace fake_cuda {

void set_blas(const Blas& wanted) {
  std::lock_guard lock(mutex);
  blas = wanted;
  calls.clear();
  asked = 0;
}
int questions() {
  std::lock_guard lock(mutex);
  return asked;
}

std::vector<Matmul> matmuls() {
  std::lock_guard lock(mutex);
  return calls;
}

}  // namespace fake_cuda

extern "C" {

std::size_t cublasLtGetVersion() {
  std::lock_guard lock(mutex);
  return static_cast<std::size_t>(blas.version);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "fake";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t x) {
  delete &as<Description>(x);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t x,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& how = as<Description>(x);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(how.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(how.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(how.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(how.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(how.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(how.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(how.aux_rows, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t distance) {
  if (distance != static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x) {
  delete &as<Layout>(x);
  return CUBLAS_STATUS_SUCCESS;
}

// Only a size that is no distance between columns.
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t x,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  if (attribute != CUBLASLT_MATRIX_LAYOUT_COLS) return CUBLAS_STATUS_NOT_SUPPORTED;
  return take(as<Layout>(x).columns, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t x) {
  delete &as<Preference>(x);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t x,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto& preference = as<Preference>(x);
  std::uint32_t alignment = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference.schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: {
      const cublasStatus_t status = take(alignment, value, bytes);
      preference.alignment = std::min(preference.alignment, alignment);
      return status;
    }
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  Sizes sizes;
  *found = 0;
  if (!fit(as_const<Description>(how), as_const<Layout>(a), as_const<Layout>(b),
           as_const<Layout>(d), sizes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto& preference = as_const<Preference>(wanted);
  std::lock_guard lock(mutex);
  ++asked;
  for (std::uint32_t id = 1; id <= static_cast<std::uint32_t>(blas.num_algorithms); ++id) {
    if (*found == most) break;
    Algorithm algorithm{{id, 20 + id, 1, 0, id % 2, 0, 5, 0, 2}, preference.alignment};
    if (id == 3) {
      // In f32 if it may, else in place.
      constexpr std::uint32_t kInPlace = CUBLASLT_REDUCTION_SCHEME_INPLACE,
                              kInF32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
      const std::uint32_t scheme =
          preference.schemes & (preference.schemes & kInPlace ? kInPlace : kInF32);
      if (scheme == 0) continue;
      algorithm.attributes[kSplit] = 2;
      algorithm.attributes[kScheme] = scheme;
    }
    const std::size_t bytes = workspace_of(algorithm, sizes);
    if (bytes > preference.workspace) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    put(algorithm, result.algo);
    result.workspaceSize = bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, int id, cublasLtMatmulAlgo_t* algorithm) {
  std::lock_guard lock(mutex);
  if (id < 1 || id > blas.num_algorithms) return CUBLAS_STATUS_INVALID_VALUE;
  put({{static_cast<std::uint32_t>(id), 0, 1, 0, 0, 0, 0, 0, 0}, 0}, *algorithm);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t bytes_of_attribute(int attribute) {
  return attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                 attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID
             ? 2
             : 4;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (attribute == CUBLASLT_ALGO_CONFIG_ID || attribute >= kNumAttributes ||
      bytes != bytes_of_attribute(attribute)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Algorithm x = of(*algorithm);
  x.attributes[attribute] = 0;
  std::memcpy(&x.attributes[attribute], value, bytes);
  put(x, *algorithm);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  if (attribute >= kNumAttributes || bytes != bytes_of_attribute(attribute)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Algorithm x = of(*algorithm);
  std::memcpy(value, &x.attributes[attribute], bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
// Tiles of the fake heuristic are 20 and the number: no other is supported.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  Sizes sizes;
  if (!fit(as_const<Description>(how), as_const<Layout>(a), as_const<Layout>(b),
           as_const<Layout>(d), sizes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Algorithm x = of(*algorithm);
  if (x.attributes[CUBLASLT_ALGO_CONFIG_TILE_ID] != 20 + x.attributes[CUBLASLT_ALGO_CONFIG_ID]) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!multiplies(x, sizes)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = workspace_of(x, sizes);
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t described, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* scratch,
                              std::size_t bytes, cudaStream_t stream) {
  const auto& a_view = as_const<Layout>(a_layout);
  const auto& d_view = as_const<Layout>(d_layout);
  const Description how = as_const<Description>(described);  // its pointers are those of this call
  Sizes sizes;
  const bool ours = *static_cast<const float*>(alpha) == 1.0f;
  const bool adds = *static_cast<const float*>(beta) == 1.0f;
  // A gradient is added to the output, a branch to another tensor's values.
  if (adds && (c == d) == (how.transpose_a == CUBLAS_OP_T)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!ours || !fit(how, a_view, as_const<Layout>(b_layout), d_view, sizes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Algorithm x = of(*algorithm);
  if (workspace_of(x, sizes) > bytes) return CUBLAS_STATUS_INVALID_VALUE;
  if (!multiplies(x, sizes)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const void* operand : {a, b, c, static_cast<const void*>(d), how.bias, how.aux}) {
    if (x.alignment > 0 && reinterpret_cast<std::uintptr_t>(operand) % x.alignment != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const auto id = static_cast<int>(x.attributes[CUBLASLT_ALGO_CONFIG_ID]);
  int takes_ms = 1;
  {
    std::lock_guard lock(mutex);
    calls.push_back({sizes.m, sizes.n, sizes.k, id});
    if (const auto found = blas.takes_ms.find(id); found != blas.takes_ms.end()) {
      takes_ms = found->second;
    }
  }
  const Operands operands{
      a, b, adds ? c : nullptr, d, dtype_of_type(a_view.type), dtype_of_type(d_view.type)};
  fake_cuda::launch(stream, {"matmul", [=] { compute(how, sizes, operands); },
                             accesses(how, sizes, operands, scratch, workspace_of(x, sizes))});
  for (int i = 1; i < takes_ms; ++i) fake_cuda::launch(stream, {"matmul goes on", [] {}});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
