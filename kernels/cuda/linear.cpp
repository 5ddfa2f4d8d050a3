// The three products through cuBLASLt. For each key (kernels/device_common/matmul_key.h) an
// algorithm is chosen once (matmul_plan.h) and used from then on. Plans are leased to threads,
// which set pointers in them (kernels/device_common/lease_pool.h). The workspace belongs to the
// caller's stream, so products on different streams share nothing.
#include "kernels/linear.h"

#include <map>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/device_common/lease_pool.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::MatmulKey;
using Plans = std::map<MatmulKey, PlannedMatmul>;

const PlannedMatmul& planned(int device, const MatmulKey& key) {
  auto& matmuls =
      device_common::leased_by_thread<Plans>(device, [] { return std::make_unique<Plans>(); });
  const auto found = matmuls.find(key);
  if (found != matmuls.end()) return found->second;
  return matmuls.emplace(key, plan_matmul(device, key)).first->second;
}

template <class Args>
void multiply(Stream& stream, const Args& args, const MatmulOperands& operands) {
  CudaStream& cuda = cuda_stream(stream);
  const MatmulKey key = device_common::on_stream(device_common::matmul_key(args), cuda.cuda());
  SHERD_CHECK(reinterpret_cast<std::uintptr_t>(args.workspace.data) % 256 == 0,
              "linear: a workspace at {}", args.workspace.data);
  launch_matmul(cuda, planned(cuda.cuda().device, key), key, operands, args.workspace.data);
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  multiply(stream, args,
           {args.w.data, args.x.data, args.y.data, args.bias.data, args.gelu_input.data,
            args.residual.data});
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  multiply(stream, args, {args.w.data, args.dy.data, args.dx.data, nullptr, args.gelu_input.data});
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  multiply(stream, args, {args.x.data, args.dy.data, args.dw.data});
  if (args.dbias) {
    sum_columns(stream, args.dy, args.shape, args.dbias, args.add_to_output, args.workspace);
  }
}

}  // namespace sherd::kernels::cuda
