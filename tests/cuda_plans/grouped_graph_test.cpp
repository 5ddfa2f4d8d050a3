// cuDNN's plans for products of many experts, made without a GPU for one that is described to it.
#include "kernels/cuda/grouped_graph.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/cuda_plans/h100.h"
#include "tests/support/values/error_text.h"

namespace sherd::kernels::cuda {
namespace {

struct Mixture {
  const char* name;
  std::int64_t experts, width, ffn_width;
};
const Mixture kMixtures[] = {
    {"Moonlight", 64, 2048, 1408},    {"Qwen3-30B-A3B", 128, 2048, 768},
    {"Mixtral 8x7B", 8, 4096, 14336}, {"Moonlight on eight expert ranks", 8, 2048, 1408},
    {"the most", 768, 64, 32},        {"the tests'", 5, 24, 16}};

// Products of the up matrix and of the down matrix.
std::vector<GroupedKey> keys_of(const Mixture& mixture, std::int64_t rows, DType dtype) {
  return {{mixture.experts, rows, mixture.width, 2 * mixture.ffn_width, dtype},
          {mixture.experts, rows, mixture.ffn_width, mixture.width, dtype}};
}

// One kernel for every number of rows and of experts: what a row's bits depend on. Its scratch is what is left of the
// workspace, or it would have been refused.
TEST(GroupedGraph, HasOneKernelOnAnH100HoweverManyRowsAndExperts) {
  const auto device = h100();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::string>> kernels;
    for (const Mixture& mixture : kMixtures) {
      for (const std::int64_t rows : {1, 2, 3, 24, 512, 768, 3072, 8192, 65536}) {
        for (const GroupedKey& key : keys_of(mixture, rows, dtype)) {
          std::string name;
          ASSERT_NO_THROW(name = check_grouped_graph(key, device)) << mixture.name;
          kernels[{key.inputs, key.outputs}].insert(name);
          if (rows == 8192) fmt::print("{}: {} by {}\n", mixture.name, key.text(), name);
        }
      }
    }
    for (const auto& [sizes, names] : kernels) EXPECT_EQ(names.size(), 1u) << sizes.first;
  }
}

// So gradients of inputs are a launch for each expert. Delete that loop when this fails.
TEST(GroupedGraph, HasNoPlanOnAnH100ForTransposedWeights) {
  const auto device = h100();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Mixture& mixture : kMixtures) {
      for (const GroupedKey& key : keys_of(mixture, 8192, dtype)) {
        const std::string error =
            test::error_text<UsageError>([&] { check_grouped_graph(key, device, true); });
        EXPECT_NE(error.find("has no plan for grouped products"), std::string::npos) << error;
        EXPECT_NE(error.find("weight_layout"), std::string::npos) << error;
        EXPECT_EQ(error.find('\n'), std::string::npos) << error;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cuda
