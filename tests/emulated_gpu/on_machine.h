/// A run on the fake CUDA machine, which has to end without races and with everything released.
#pragma once

#include <gtest/gtest.h>

#include "tests/fake_cuda/machine.h"

namespace sherd::testing {

/// On a machine that takes work in another order for each seed, late where it is even, and is left as it was found.
template <class Work>
void on_machine(int num_devices, std::uint64_t seed, const Work& work, bool loads_lazily = false) {
  fake_cuda::start({.num_devices = num_devices, .seed = seed, .loads_lazily = loads_lazily});
  work();
  EXPECT_EQ(fake_cuda::races(), std::vector<std::string>()) << "seed " << seed;
  EXPECT_EQ(fake_cuda::left_behind(), "") << "seed " << seed;
}

}  // namespace sherd::testing
