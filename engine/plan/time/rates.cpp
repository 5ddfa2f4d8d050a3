#include "engine/plan/time/rates.h"

#include <utility>

namespace sherd::engine {

GpuStepRates::GpuStepRates(GpuRates rates, bool allow_tf32)
    : rates_(std::move(rates)), tf32_(allow_tf32) {
  name = rates_.name;
  stated_flops = rates_.stated_flops;
}

GpuRates trained_gpu(GpuRates rates) {
  if (rates.name.starts_with("A100")) {
    rates.matmul_share = 0.83;
    rates.attention_share = 0.81;
    rates.memory_share = 0.76;
    rates.exchange_share = 0.92;
    rates.links.card_share = 0.52;
  } else {  // H100; H200 likewise, an assumption
    rates.matmul_share = 1.0;
    rates.attention_share = 0.83;
    rates.memory_share = 0.95;
    rates.exchange_share = 0.83;
  }
  return rates;
}

}  // namespace sherd::engine
