#include "tests/bench/openblas.h"

#include <cblas.h>

namespace sherd::bench {
namespace {

bool use_one_thread() {
  openblas_set_num_threads(1);
  return true;
}

CBLAS_TRANSPOSE form_of(const GemmOperand& operand) {
  return operand.transposed ? CblasTrans : CblasNoTrans;
}

blasint size(std::int64_t n) {
  return static_cast<blasint>(n);
}

}  // namespace

void gemm(const Gemm& matmul) {
  [[maybe_unused]] static const bool once = use_one_thread();
  const auto& [rows, columns, depth, a, b, c, c_stride, scale, add] = matmul;
  cblas_sgemm(CblasRowMajor, form_of(a), form_of(b), size(rows), size(columns), size(depth), scale,
              a.data, size(a.stride), b.data, size(b.stride), add ? 1.0f : 0.0f, c, size(c_stride));
}

}  // namespace sherd::bench
