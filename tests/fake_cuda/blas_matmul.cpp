#include "tests/fake_cuda/blas_matmul.h"

#include "core/tensor.h"
#include "core/thread_team.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/linear.h"
#include "tests/support/devices/host_scratch.h"

namespace fake_blas {

using namespace sherd;
using namespace sherd::kernels;

using test::host_scratch;

DType dtype_of_type(cudaDataType_t type) {
  return type == CUDA_R_16BF ? DType::kBF16 : type == CUDA_R_16F ? DType::kF16 : DType::kF32;
}

bool fit(const Description& how, const Layout& a, const Layout& b, const Layout& d, Sizes& sizes) {
  const bool ta = how.transpose_a == CUBLAS_OP_T, tb = how.transpose_b == CUBLAS_OP_T;
  sizes = {static_cast<std::int64_t>(ta ? a.columns : a.rows),
           static_cast<std::int64_t>(tb ? b.rows : b.columns),
           static_cast<std::int64_t>(ta ? a.rows : a.columns)};
  const auto depth = static_cast<std::int64_t>(tb ? b.columns : b.rows);
  return depth == sizes.k && static_cast<std::int64_t>(d.rows) == sizes.m &&
         static_cast<std::int64_t>(d.columns) == sizes.n && a.type == b.type && !(ta && tb);
}

// Which of kernels/linear.h's three it is follows from what is transposed.
void compute(const Description& how, const Sizes& s, const Operands& x) {
  ThreadTeam team(1);
  const auto view = [](const void* data, DType dtype, std::int64_t numel) {
    return Tensor{const_cast<void*>(data), dtype, numel};
  };
  const Tensor a = view(x.a, x.in, s.m * s.k), b = view(x.b, x.in, s.k * s.n);
  const Tensor d = view(x.d, x.out, s.m * s.n);
  const Tensor c = x.c ? view(x.c, x.out, s.m * s.n) : Tensor{};
  const bool add = x.c != nullptr;
  const Tensor aux = how.aux ? view(how.aux, x.in, s.m * s.n) : Tensor{};
  const ActivationShape gelu{ActivationKind::kGelu, s.n, s.m};
  if (how.transpose_a == CUBLAS_OP_T) {
    const bool has_gelu = how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
                          how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const Tensor bias = how.bias ? view(how.bias, x.in, s.m) : Tensor{};
    const LinearShape shape{s.n, s.k, s.m};
    cpu::linear_forward(team,
                        {shape, b, a, bias, has_gelu ? aux : d, host_scratch(shape, x.in), {}, c});
    if (has_gelu) cpu::activation_forward(team, {gelu, aux, d});
  } else if (how.transpose_b == CUBLAS_OP_T) {
    const LinearShape shape{s.k, s.m, s.n};
    cpu::linear_backward_weight(team, {shape, b, a, d, {}, add, host_scratch(shape, x.in)});
  } else {
    const LinearShape shape{s.n, s.m, s.k};
    cpu::linear_backward_input(team, {shape, b, a, d, add, host_scratch(shape, x.in)});
    if (how.epilogue == CUBLASLT_EPILOGUE_DGELU) cpu::activation_backward(team, {gelu, aux, d, d});
  }
}

std::vector<fake_cuda::Access> accesses(const Description& how, const Sizes& s, const Operands& x,
                                        void* scratch, std::size_t scratch_bytes) {
  std::vector<fake_cuda::Access> all;
  const auto add = [&](const void* data, std::int64_t numel, DType dtype, bool write) {
    if (!data) return;
    all.push_back({data, static_cast<std::size_t>(numel) * size_of(dtype), write});
  };
  add(x.a, s.m * s.k, x.in, false);
  add(x.b, s.k * s.n, x.in, false);
  add(x.c, s.m * s.n, x.out, false);
  add(how.bias, s.m, x.in, false);
  add(how.aux, s.m * s.n, x.in, how.epilogue != CUBLASLT_EPILOGUE_DGELU);
  add(x.d, s.m * s.n, x.out, true);
  all.push_back({scratch, scratch_bytes, true});
  return all;
}

}  // namespace fake_blas
