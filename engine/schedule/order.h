/// The named orders of forwards and backwards (generate.h).
#pragma once

namespace sherd::schedule {

enum class Order {
  kLayerParallel,
  kGPipe,
  k1F1B,
  kInterleaved1F1B,
  kZbH1,
  kZbV,
  kDualPipeV,
};

}  // namespace sherd::schedule
