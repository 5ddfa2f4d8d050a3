#include "kernels/expert_adapters.h"

#include "kernels/check_tensor.h"
#include "kernels/experts.h"

namespace sherd::kernels {
namespace {

struct MatrixSize {
  std::int64_t inputs = 0, outputs = 0;
};

void check_adapter(const ExpertsShape& shape, const ExpertAdapters& adapters,
                   const ExpertAdapter& adapter, MatrixSize size, DType dtype) {
  const std::int64_t r = adapters.rank;
  SHERD_CHECK(r > 0 && r <= size.inputs && r <= adapter.outputs && adapter.first_output >= 0 &&
                  adapter.first_output + adapter.outputs <= size.outputs,
              "an adapter of rank {} of outputs {} to {} of a matrix {} x {}", r,
              adapter.first_output, adapter.first_output + adapter.outputs, size.outputs,
              size.inputs);
  check_tensor("experts: A", adapter.a, dtype, shape.experts * r * size.inputs);
  check_tensor("experts: B", adapter.b, dtype, shape.experts * adapter.outputs * r);
  check_tensor("experts: h", adapters.h, dtype, shape.buffer_rows * r);
  if (adapter.outputs == size.outputs) return;
  check_tensor("experts: z", adapters.z, dtype, shape.buffer_rows * shape.ffn_width);
}

}  // namespace

void check_adapters(const ExpertsShape& shape, const ExpertAdapters& adapters, DType dtype,
                    bool with_gradients) {
  const auto check = [&](const std::vector<ExpertAdapter>& list, MatrixSize size) {
    for (const ExpertAdapter& adapter : list) {
      check_adapter(shape, adapters, adapter, size, dtype);
      if (!with_gradients) continue;
      check_tensor("experts: gradient of A", adapter.d_a, adapter.d_a.dtype, adapter.a.numel);
      check_tensor("experts: gradient of B", adapter.d_b, adapter.d_b.dtype, adapter.b.numel);
    }
  };
  check(adapters.up, {shape.width, shape.up_width()});
  check(adapters.down, {shape.ffn_width, shape.width});
}

}  // namespace sherd::kernels
