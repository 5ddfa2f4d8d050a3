#include "optim/optimizer.h"

#include "optim/by_norm.h"
#include "optim/elementwise.h"
#include "optim/muon.h"
#include "optim/tensor_norms.h"

namespace sherd::optim {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const sharding::Rank& rank,
                                          const std::vector<sharding::UnitState>& units) {
  switch (options.type) {
    case OptimizerType::kAdamW:
    case OptimizerType::kAdam:
    case OptimizerType::kSgd:
    case OptimizerType::kLion:
      return make_elementwise(options, rank, units);
    case OptimizerType::kLamb:
    case OptimizerType::kLars:
      return make_by_norm(options, rank, units);
    case OptimizerType::kMuon:
      return make_muon(options, rank, units);
  }
  CHECK(false, "unknown optimizer");
  __builtin_unreachable();
}

std::vector<std::string> moment_kinds(const OptimizerOptions& options, const UnitSpec& unit,
                                      const ParameterSpec& parameter) {
  switch (options.type) {
    case OptimizerType::kAdamW:
    case OptimizerType::kAdam:
    case OptimizerType::kLamb:
      return {"exp_avg", "exp_avg_sq"};
    case OptimizerType::kSgd:
      if (options.momentum == 0.0f) return {};
      return {"momentum"};
    case OptimizerType::kLion:
      return {"exp_avg"};
    case OptimizerType::kLars:
      return {"momentum"};
    case OptimizerType::kMuon:
      if (is_muons(unit, parameter)) return {"momentum"};
      return {"exp_avg", "exp_avg_sq"};
  }
  CHECK(false, "unknown optimizer");
  __builtin_unreachable();
}

std::vector<BufferSpec> optimizer_buffers(const OptimizerOptions& options,
                                          const std::vector<sharding::UnitPlan>& units, int rank) {
  switch (options.type) {
    case OptimizerType::kAdamW:
    case OptimizerType::kAdam:
    case OptimizerType::kSgd:
    case OptimizerType::kLion:
      return elementwise_buffers(options, units);
    case OptimizerType::kLamb:
    case OptimizerType::kLars:
      return by_norm_buffers(options, units);
    case OptimizerType::kMuon:
      return muon_buffers(options, units, rank);
  }
  CHECK(false, "unknown optimizer");
  __builtin_unreachable();
}

sharding::Traffic optimizer_traffic(const OptimizerOptions& options,
                                    const std::vector<sharding::UnitPlan>& units, int rank) {
  switch (options.type) {
    case OptimizerType::kAdamW:
    case OptimizerType::kAdam:
    case OptimizerType::kSgd:
    case OptimizerType::kLion:
      return sharding::Traffic(units[0].layout.world_size());
    case OptimizerType::kLamb:
    case OptimizerType::kLars:
      return tensor_norm_traffic(units);
    case OptimizerType::kMuon:
      return muon_traffic(units, rank);
  }
  CHECK(false, "unknown optimizer");
  __builtin_unreachable();
}

}  // namespace sherd::optim
