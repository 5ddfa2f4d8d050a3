// The three products through cuBLASLt. For each key (kernels/device_common/matmul_key.h) the
// heuristics are asked once; the first answer is used from then on. Plans are leased to threads, which
// set pointers in them (kernels/device_common/lease_pool.h). The workspace belongs to the caller's stream, so products on different streams share nothing.
#include "kernels/linear.h"

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>

#include "core/cuda_device.h"
#include "core/cuda_error.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/forms.h"
#include "kernels/device_common/lease_pool.h"
#include "kernels/device_common/matmul_key.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::MatmulEpilogue;
using device_common::MatmulKey;

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw TrainingError("{} failed: {}", call, cublasLtGetStatusString(status));
}

// Handles live as long as the process: destroying them at exit races with the driver's own end.
cublasLtHandle_t handle_of_device(int device) {
  static std::mutex mutex;
  static auto* handles = new std::map<int, cublasLtHandle_t>;
  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = (*handles)[device];
  if (!handle) check_blas(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      CHECK(false, "a product of {}", name_of(dtype));
      __builtin_unreachable();
  }
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy>;

struct PlannedMatmul {
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

template <class T>
void set(const Owned<cublasLtMatmulDesc_t>& operation, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const Owned<cublasLtMatmulPreference_t>& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check_blas(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
      "cublasLtMatmulPreferenceSetAttribute");
}

Owned<cublasLtMatrixLayout_t> layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), rows),
             "cublasLtMatrixLayoutCreate");
  return Owned<cublasLtMatrixLayout_t>(layout);
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

Owned<cublasLtMatmulDesc_t> operation_of(const MatmulKey& key) {
  const cublasComputeType_t compute =
      key.in == DType::kF32 && key.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t created = nullptr;
  check_blas(cublasLtMatmulDescCreate(&created, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Owned<cublasLtMatmulDesc_t> operation(created);
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

void set_pointers(const MatmulKey& key, const Owned<cublasLtMatmulDesc_t>& operation,
                  const void* bias, const void* gelu_input) {
  if (device_common::has_bias(key.epilogue))
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (device_common::has_gelu(key.epilogue)) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_input);
  }
}

// Split sums are kept in f32 and added in a step of their own: the other schemes round partial sums
// to the output's type, or add them in an order that a counter decides. Where a bias is added in 16
// bits, sums aren't split at all: the step that adds split sums rounds them before the bias is added
// (seen on an H100 with cuBLASLt 13.1).
Owned<cublasLtMatmulPreference_t> preference_of(const MatmulKey& key) {
  cublasLtMatmulPreference_t created = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
  Owned<cublasLtMatmulPreference_t> preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(key.workspace_bytes));
  const bool rounds_once = key.out != DType::kF32 && device_common::has_bias(key.epilogue);
  if (key.deterministic || rounds_once) {
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(rounds_once ? CUBLASLT_REDUCTION_SCHEME_NONE
                                               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  const auto alignment = static_cast<std::uint32_t>(key.alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, attribute, alignment);
  }
  return preference;
}

PlannedMatmul plan(cublasLtHandle_t handle, const MatmulKey& key) {
  PlannedMatmul matmul{
      .operation = operation_of(key),
      .a = key.transpose_a ? layout(key.in, key.k, key.m) : layout(key.in, key.m, key.k),
      .b = key.transpose_b ? layout(key.in, key.n, key.k) : layout(key.in, key.k, key.n),
      .d = layout(key.out, key.m, key.n),
      .algorithm = {}};
  const Owned<cublasLtMatmulPreference_t> preference = preference_of(key);
  // The heuristics read nothing behind these pointers, only how they are aligned; that of the key's
  // class, so that the answer doesn't depend on where the first caller's tensors lay.
  const void* nowhere = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(key.alignment));
  set_pointers(key, matmul.operation, nowhere, nowhere);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, matmul.operation.get(), matmul.a.get(), matmul.b.get(), matmul.d.get(),
      matmul.d.get(), preference.get(), 1, &result, &found);
  const bool none = found == 0 || result.state != CUBLAS_STATUS_SUCCESS;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && none)) {
    throw UsageError(
        "cuBLASLt {} has no algorithm for a product [{}, {}] over {} of {} into {}{} with {} bytes "
        "of workspace on this GPU; choose other types in mixed_precision, or run.device: cpu",
        cublasLtGetVersion(), key.m, key.n, key.k, name_of(key.in), name_of(key.out),
        device_common::has_gelu(key.epilogue) ? " with GELU" : "", key.workspace_bytes);
  }
  check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  matmul.algorithm = result.algo;
  return matmul;
}

using Plans = std::map<MatmulKey, PlannedMatmul>;

const PlannedMatmul& planned(int device, const MatmulKey& key) {
  auto& matmuls =
      device_common::leased_by_thread<Plans>(device, [] { return std::make_unique<Plans>(); });
  const auto found = matmuls.find(key);
  if (found != matmuls.end()) return found->second;
  return matmuls.emplace(key, plan(handle_of_device(device), key)).first->second;
}

struct Operands {
  const void *a, *b;
  void* d;
  const void* bias = nullptr;
  const void* gelu_input = nullptr;
};

// `key` has its shape; what follows from the operands and the stream is filled in here.
void multiply(Stream& stream, MatmulKey key, DType in, DType out, const Operands& operands,
              const Tensor& workspace) {
  CudaStream& cuda = cuda_stream(stream);
  key.in = in;
  key.out = out;
  key.allow_tf32 = cuda.cuda().allow_tf32;
  key.deterministic = cuda.cuda().deterministic;
  key.alignment =
      device_common::alignment_class(size_of(in) < size_of(out) ? in : out, operands.a, operands.b,
                                     operands.d, operands.bias, operands.gelu_input);
  key.workspace_bytes = std::min(workspace.bytes(), device_common::kMatmulWorkspaceBytes);
  CHECK(reinterpret_cast<std::uintptr_t>(workspace.data) % 256 == 0, "linear: a workspace at {}",
        workspace.data);
  const PlannedMatmul& matmul = planned(cuda.cuda().device, key);
  set_pointers(key, matmul.operation, operands.bias, operands.gelu_input);
  const float alpha = 1.0f, beta = key.add_to_output ? 1.0f : 0.0f;
  check_blas(
      cublasLtMatmul(handle_of_device(cuda.cuda().device), matmul.operation.get(), &alpha,
                     operands.a, matmul.a.get(), operands.b, matmul.b.get(), &beta, operands.d,
                     matmul.d.get(), operands.d, matmul.d.get(), &matmul.algorithm, workspace.data,
                     static_cast<std::size_t>(key.workspace_bytes), cuda.handle()),
      "cublasLtMatmul");
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  MatmulKey key = device_common::forward_matmul(args.shape);
  key.epilogue = args.gelu_input ? args.bias ? MatmulEpilogue::kGeluBias : MatmulEpilogue::kGelu
                 : args.bias     ? MatmulEpilogue::kBias
                                 : MatmulEpilogue::kNone;
  multiply(stream, key, args.x.dtype, args.y.dtype,
           {args.w.data, args.x.data, args.y.data, args.bias.data, args.gelu_input.data},
           args.workspace);
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  MatmulKey key = device_common::backward_input_matmul(args.shape);
  key.add_to_output = args.add_to_output;
  if (args.gelu_input) key.epilogue = MatmulEpilogue::kGeluSlope;
  multiply(stream, key, args.dy.dtype, args.dx.dtype,
           {args.w.data, args.dy.data, args.dx.data, nullptr, args.gelu_input.data},
           args.workspace);
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  MatmulKey key = device_common::backward_weight_matmul(args.shape);
  key.add_to_output = args.add_to_output;
  multiply(stream, key, args.dy.dtype, args.dw.dtype, {args.x.data, args.dy.data, args.dw.data},
           args.workspace);
  if (args.dbias) {
    sum_columns(stream, args.dy, args.shape, args.dbias, args.add_to_output, args.workspace);
  }
}

}  // namespace sherd::kernels::cuda
