#include "kernels/cuda/matmul_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "core/error.h"
#include "kernels/cuda/forms.h"
#include "kernels/libraries.h"

namespace sherd::kernels::cuda {

using device_common::MatmulAlgorithm;
using device_common::MatmulEpilogue;
using device_common::MatmulKey;
using device_common::MatmulPlace;
using device_common::MatmulTable;
using device_common::TimedAlgorithm;

namespace {

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      SHERD_CHECK(false, "a product of {}", name_of(dtype));
      __builtin_unreachable();
  }
}

template <class T>
void set(const OwnedBlas<cublasLtMatmulDesc_t>& operation, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const OwnedBlas<cublasLtMatmulPreference_t>& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check_blas(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
      "cublasLtMatmulPreferenceSetAttribute");
}

OwnedBlas<cublasLtMatrixLayout_t> layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), rows),
             "cublasLtMatrixLayoutCreate");
  return OwnedBlas<cublasLtMatrixLayout_t>(layout);
}

std::uint32_t epilogue_of(MatmulEpilogue epilogue) {
  switch (epilogue) {
    case MatmulEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case MatmulEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case MatmulEpilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case MatmulEpilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case MatmulEpilogue::kGeluSlope:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  __builtin_unreachable();
}

cublasComputeType_t compute_type_of(const MatmulKey& key) {
  return key.in == DType::kF32 && key.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                 : CUBLAS_COMPUTE_32F;
}

OwnedBlas<cublasLtMatmulDesc_t> operation_of(const MatmulKey& key) {
  cublasLtMatmulDesc_t created = nullptr;
  check_blas(cublasLtMatmulDescCreate(&created, compute_type_of(key), CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  OwnedBlas<cublasLtMatmulDesc_t> operation(created);
  const auto transposed = [](bool yes) { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed(key.transpose_a));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed(key.transpose_b));
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key.epilogue));
  if (device_common::has_bias(key.epilogue)) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.in));
  }
  if (device_common::has_gelu(key.epilogue)) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.m);
  }
  return operation;
}

void set_pointers(const MatmulKey& key, const OwnedBlas<cublasLtMatmulDesc_t>& operation,
                  const void* bias, const void* gelu_input) {
  if (device_common::has_bias(key.epilogue))
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (device_common::has_gelu(key.epilogue)) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_input);
  }
}

// Split sums are kept in f32 and added in a step of their own: the other schemes round partial sums
// to the output's type, or add them in an order that a counter decides. Where a bias is added in 16
// bits, sums aren't split at all: the step that adds split sums rounds them before the bias is
// added (seen on an H100 with cuBLASLt 13.1).
OwnedBlas<cublasLtMatmulPreference_t> preference_of(const MatmulKey& key, std::int64_t allowed) {
  cublasLtMatmulPreference_t created = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
  OwnedBlas<cublasLtMatmulPreference_t> preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(key.workspace_bytes));
  static_assert(device_common::kReductionInF32 == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  if (allowed != -1) {
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(allowed));
  }
  const auto alignment = static_cast<std::uint32_t>(key.alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, attribute, alignment);
  }
  return preference;
}

// Each attribute is as wide as cublasLt.h says.
struct Attribute {
  cublasLtMatmulAlgoConfigAttributes_t name;
  std::size_t bytes;
  std::int64_t MatmulAlgorithm::*value;
};
constexpr std::array kAttributes = {
    Attribute{CUBLASLT_ALGO_CONFIG_TILE_ID, 4, &MatmulAlgorithm::tile},
    Attribute{CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4, &MatmulAlgorithm::split_k},
    Attribute{CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4, &MatmulAlgorithm::reduction},
    Attribute{CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4, &MatmulAlgorithm::swizzle},
    Attribute{CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4, &MatmulAlgorithm::custom},
    Attribute{CUBLASLT_ALGO_CONFIG_STAGES_ID, 4, &MatmulAlgorithm::stages},
    Attribute{CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2, &MatmulAlgorithm::inner_shape},
    Attribute{CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2, &MatmulAlgorithm::cluster_shape}};

std::int64_t attribute_of(const cublasLtMatmulAlgo_t& algorithm,
                          cublasLtMatmulAlgoConfigAttributes_t name, std::size_t bytes) {
  std::int64_t value = 0;  // the low bytes are what is filled in
  std::size_t written = 0;
  check_blas(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, bytes, &written),
             "cublasLtMatmulAlgoConfigGetAttribute");
  return value;
}

MatmulAlgorithm row_of(const cublasLtMatmulAlgo_t& algorithm) {
  MatmulAlgorithm row{.id = attribute_of(algorithm, CUBLASLT_ALGO_CONFIG_ID, 4)};
  for (const Attribute& each : kAttributes) {
    row.*each.value = attribute_of(algorithm, each.name, each.bytes);
  }
  return row;
}

// The algorithm of a row, which cuBLASLt has looked at.
cublasLtMatmulAlgo_t measured_algorithm(cublasLtHandle_t handle, const PlannedMatmul& matmul,
                                        const MatmulKey& key, const MatmulAlgorithm& row) {
  cublasLtMatmulAlgo_t algorithm{};
  cublasStatus_t status = cublasLtMatmulAlgoInit(
      handle, compute_type_of(key), CUDA_R_32F, type_of(key.in), type_of(key.in), type_of(key.out),
      type_of(key.out), static_cast<int>(row.id), &algorithm);
  for (const Attribute& each : kAttributes) {
    if (status != CUBLAS_STATUS_SUCCESS) break;
    status =
        cublasLtMatmulAlgoConfigSetAttribute(&algorithm, each.name, &(row.*each.value), each.bytes);
  }
  cublasLtMatmulHeuristicResult_t result{};
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoCheck(handle, matmul.operation.get(), matmul.a.get(), matmul.b.get(),
                                     matmul.d.get(), matmul.d.get(), &algorithm, &result);
  }
  const bool fits = result.workspaceSize <= static_cast<std::size_t>(key.workspace_bytes);
  if (status != CUBLAS_STATUS_SUCCESS || !fits) {
    throw DataError(
        "{}: cuBLASLt refuses the algorithm for {} ({}). `./dev gpu-check --tune` measures again; "
        "SHERD_MATMUL_TABLE= leaves the file out.",
        device_common::matmul_table_file(), device_common::text_of(key),
        fits ? cublasLtGetStatusString(status) : "it needs more workspace");
  }
  return algorithm;
}

// Read once for each GPU.
const MatmulTable& table_of_device(int device) {
  static std::mutex mutex;
  static auto* tables = new std::map<int, MatmulTable>;
  std::lock_guard lock(mutex);
  const auto found = tables->find(device);
  if (found != tables->end()) return found->second;
  const std::string file = device_common::matmul_table_file();
  MatmulTable table;
  if (!file.empty())
    table = MatmulTable(device_common::text_of_table(file), file, matmul_place(device));
  return tables->emplace(device, std::move(table)).first->second;
}

PlannedMatmul described(const MatmulKey& key) {
  return {.operation = operation_of(key),
          .a = key.transpose_a ? layout(key.in, key.k, key.m) : layout(key.in, key.m, key.k),
          .b = key.transpose_b ? layout(key.in, key.n, key.k) : layout(key.in, key.k, key.n),
          .d = layout(key.out, key.m, key.n)};
}

std::vector<cublasLtMatmulAlgo_t> asked_heuristic(cublasLtHandle_t handle,
                                                  const PlannedMatmul& matmul, const MatmulKey& key,
                                                  int most, std::int64_t allowed) {
  const OwnedBlas<cublasLtMatmulPreference_t> preference = preference_of(key, allowed);
  // The heuristics read nothing at these addresses, only how they are aligned; that of the key's
  // class, so that the answer doesn't depend on where the first caller's tensors lay.
  const void* nowhere = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(key.alignment));
  set_pointers(key, matmul.operation, nowhere, nowhere);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, matmul.operation.get(), matmul.a.get(), matmul.b.get(), matmul.d.get(),
      matmul.d.get(), preference.get(), most, results.data(), &found);
  results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(found) : 0);
  std::erase_if(results, [](const auto& each) { return each.state != CUBLAS_STATUS_SUCCESS; });
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (results.empty()) {
    throw UsageError(
        "cuBLASLt {} has no algorithm for a product [{}, {}] over {} of {} into {}{} with {} bytes "
        "of workspace on this GPU; choose other types in mixed_precision, or run.device: cpu",
        cublasLtGetVersion(), key.m, key.n, key.k, name_of(key.in), name_of(key.out),
        device_common::has_gelu(key.epilogue) ? " with GELU" : "", key.workspace_bytes);
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const auto& each : results) algorithms.push_back(each.algo);
  return algorithms;
}

cublasStatus_t launched(CudaStream& stream, const PlannedMatmul& matmul,
                        const cublasLtMatmulAlgo_t& algorithm, const MatmulKey& key,
                        const MatmulOperands& operands, void* workspace) {
  set_pointers(key, matmul.operation, operands.bias, operands.gelu_input);
  const float alpha = 1.0f, beta = key.add_to_output ? 1.0f : 0.0f;
  return cublasLtMatmul(handle_of_device(stream.cuda().device), matmul.operation.get(), &alpha,
                        operands.a, matmul.a.get(), operands.b, matmul.b.get(), &beta,
                        operands.c ? operands.c : operands.d, matmul.d.get(), operands.d,
                        matmul.d.get(), &algorithm, workspace,
                        static_cast<std::size_t>(key.workspace_bytes), stream.handle());
}

}  // namespace

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw TrainingError("{} failed: {}", call, cublasLtGetStatusString(status));
}

cublasLtHandle_t handle_of_device(int device) {
  static std::mutex mutex;
  static auto* handles = new std::map<int, cublasLtHandle_t>;
  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = (*handles)[device];
  if (!handle) check_blas(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

MatmulPlace matmul_place(int device) {
  // As kernels/cuda/libraries.cpp writes it.
  const std::size_t version = cublasLtGetVersion();
  for (const CudaDevice& each : cuda_system().devices) {
    if (each.index != device) continue;
    return {each.name,
            fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
  }
  SHERD_CHECK(false, "there is no GPU {}", device);
  __builtin_unreachable();
}

PlannedMatmul plan_matmul(int device, const MatmulKey& key) {
  const cublasLtHandle_t handle = handle_of_device(device);
  PlannedMatmul matmul = described(key);
  const MatmulAlgorithm* row = table_of_device(device).find(key);
  matmul.algorithm =
      row ? measured_algorithm(handle, matmul, key, *row)
          : asked_heuristic(handle, matmul, key, 1, device_common::allowed_reductions(key)).front();
  return matmul;
}

PlannedMatmul plan_matmul_of_any_rows(int device, const MatmulKey& key) {
  constexpr std::int64_t kTried[] = {1, 2, 7, 8, 31, 64, 100, 129, 255, 512, 1000, 4097};
  const cublasLtHandle_t handle = handle_of_device(device);
  PlannedMatmul matmul = described(key);
  for (const cublasLtMatmulAlgo_t& algorithm : asked_heuristic(handle, matmul, key, 64, 0)) {
    const bool multiplies_any = std::ranges::all_of(kTried, [&](std::int64_t rows) {
      set_matmul_rows(matmul, key, rows);
      cublasLtMatmulHeuristicResult_t result{};
      const cublasStatus_t status =
          cublasLtMatmulAlgoCheck(handle, matmul.operation.get(), matmul.a.get(), matmul.b.get(),
                                  matmul.d.get(), matmul.d.get(), &algorithm, &result);
      return status == CUBLAS_STATUS_SUCCESS &&
             result.workspaceSize <= static_cast<std::size_t>(key.workspace_bytes);
    });
    if (!multiplies_any) continue;
    matmul.algorithm = algorithm;
    return matmul;
  }
  throw UsageError(
      "cuBLASLt {} has no algorithm for experts' products {} that multiplies any number of rows on "
      "this GPU; choose other types in mixed_precision, or run.device: cpu",
      cublasLtGetVersion(), device_common::text_of(key));
}

void set_matmul_rows(const PlannedMatmul& matmul, const MatmulKey& key, std::int64_t rows) {
  const auto columns = static_cast<std::uint64_t>(rows);
  const auto set = [&](const OwnedBlas<cublasLtMatrixLayout_t>& layout) {
    check_blas(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                                sizeof columns),
               "cublasLtMatrixLayoutSetAttribute");
  };
  set(matmul.b);
  set(key.transpose_b ? matmul.a : matmul.d);
}

void launch_matmul(CudaStream& stream, const PlannedMatmul& matmul, const MatmulKey& key,
                   const MatmulOperands& operands, void* workspace) {
  check_blas(launched(stream, matmul, matmul.algorithm, key, operands, workspace),
             "cublasLtMatmul");
}

std::vector<TimedAlgorithm> time_algorithms(Stream& stream, const MatmulKey& key,
                                            const MatmulOperands& operands, const Tensor& workspace,
                                            const MatmulTiming& how) {
  CudaStream& cuda = cuda_stream(stream);
  SHERD_CHECK(workspace.bytes() >= key.workspace_bytes, "a workspace of {} bytes",
              workspace.bytes());
  const PlannedMatmul matmul = described(key);
  std::vector<TimedAlgorithm> timed;
  for (const cublasLtMatmulAlgo_t& algorithm :
       asked_heuristic(handle_of_device(cuda.cuda().device), matmul, key, how.most,
                       device_common::allowed_reductions(key))) {
    const auto launch = [&] {
      return launched(cuda, matmul, algorithm, key, operands, workspace.data);
    };
    const cublasStatus_t status = launch();  // what is set up once isn't timed
    if (timed.empty()) check_blas(status, "cublasLtMatmul");
    if (status != CUBLAS_STATUS_SUCCESS) continue;
    timed.push_back({row_of(algorithm), seconds_on_device(stream, how.repeats, how.before, [&] {
                       check_blas(launch(), "cublasLtMatmul");
                     })});
  }
  return timed;
}

}  // namespace sherd::kernels::cuda

namespace sherd::kernels {

std::string measured_matmuls(int device) {
  return cuda::table_of_device(device).text();
}

}  // namespace sherd::kernels
