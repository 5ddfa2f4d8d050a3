// Rates of a processor: measured, kept in a file, and read again.

#include "engine/launch/cpu_rates.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

CpuKernelRates kernels(double unit) {
  return {.matmul = {1 * unit, 2 * unit, 3 * unit, 4 * unit, 5 * unit},
          .attention_forward = 6 * unit,
          .attention_backward = 7 * unit,
          .elements = 8 * unit,
          .norm_backward = 9 * unit};
}

CpuRates some_rates() {
  return {.processor = "a processor",
          .isa = "avx2",
          .cores = 4,
          .f32 = kernels(1e9),
          .bf16 = kernels(2e9),
          .update = 1e10,
          .add = 2e10,
          .exchange = 3e10,
          .call = 1e-7,
          .scaling = 0.9,
          .memory_scaling = 0.5};
}

TEST(CpuRates, AreReadAsTheyWereWritten) {
  CpuRates read;
  ASSERT_TRUE(read_cpu_rates(cpu_rates_json(some_rates()), read));
  EXPECT_EQ(read, some_rates());
}

TEST(CpuRates, OfADamagedFileAreNotRead) {
  const std::string json = cpu_rates_json(some_rates());
  CpuRates read;
  EXPECT_FALSE(read_cpu_rates("", read));
  EXPECT_FALSE(read_cpu_rates("{}", read));
  EXPECT_FALSE(read_cpu_rates(json.substr(0, json.size() / 2), read));
  std::string negative = json;
  negative.replace(negative.find("10000000000.0"), 13, "-1.0");
  EXPECT_FALSE(read_cpu_rates(negative, read));
  std::string later = json;
  later.replace(later.find("\"version\": 1"), 12, "\"version\": 9");
  EXPECT_FALSE(read_cpu_rates(later, read));
}

TEST(CpuRates, AreMeasuredOnceForAProcessor) {
  const test::TempFolder folder;
  const std::string file = folder.file("rates.json");
  ::setenv("SHERD_RATES", file.c_str(), 1);
  EXPECT_FALSE(known_cpu_rates());
  const CpuRates measured = cpu_rates();
  EXPECT_GT(measured.f32.matmul[2], 0.0);
  EXPECT_GT(measured.bf16.attention_backward, 0.0);
  EXPECT_GT(measured.exchange, 0.0);
  EXPECT_LE(measured.scaling, 1.0);
  EXPECT_EQ(known_cpu_rates(), measured);
  EXPECT_EQ(cpu_rates(), measured);
  // Another processor's are no use here.
  std::ofstream(file) << cpu_rates_json(some_rates());
  EXPECT_FALSE(known_cpu_rates());
  ::unsetenv("SHERD_RATES");
}

}  // namespace
}  // namespace sherd::engine
