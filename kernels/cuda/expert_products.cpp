#include "kernels/cuda/expert_products.h"

#include <map>

#include "kernels/cuda/matmul_plan.h"
#include "kernels/device_common/lease_pool.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::MatmulKey;

// A type of its own: plans of other matmuls are leased apart.
struct Plans {
  std::map<MatmulKey, PlannedMatmul> of_key;
};

const PlannedMatmul& planned(int device, const MatmulKey& key) {
  auto& plans = device_common::leased_by_thread<Plans>(device, [] {
                  return std::make_unique<Plans>();
                }).of_key;
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  return plans.emplace(key, plan_matmul_of_any_rows(device, key)).first->second;
}

}  // namespace

void multiply_expert_rows(CudaStream& stream, const MatmulKey& key, std::int64_t rows,
                          const MatmulOperands& operands, void* workspace) {
  const MatmulKey own = device_common::on_stream(key, stream.cuda());
  const PlannedMatmul& matmul = planned(stream.cuda().device, own);
  set_matmul_rows(matmul, own, rows);
  launch_matmul(stream, matmul, own, operands, workspace);
}

}  // namespace sherd::kernels::cuda
