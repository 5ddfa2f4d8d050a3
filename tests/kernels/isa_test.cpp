#include "kernels/isa.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace sherd::kernels {
namespace {

TEST(Isa, TheBestWithTheCommonBitsIsChosenAndAmxOnlyWhenAskedFor) {
  for (const bool bf16_dots_pay : {true, false}) {
    EXPECT_EQ(chosen_isa("", {Isa::kAvx2}, bf16_dots_pay), Isa::kAvx2);
    EXPECT_EQ(chosen_isa("", {Isa::kAvx2, Isa::kAvx512}, bf16_dots_pay), Isa::kAvx512);
  }
  const std::vector<Isa> all = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};
  EXPECT_EQ(chosen_isa("", all, true), Isa::kAvx512Bf16);
  EXPECT_EQ(chosen_isa("", all, false), Isa::kAvx512);
  EXPECT_EQ(chosen_isa("avx512_bf16", all, false), Isa::kAvx512Bf16);
  EXPECT_EQ(chosen_isa("amx", all, false), Isa::kAmx);
  EXPECT_EQ(chosen_isa("avx2", all, true), Isa::kAvx2);
}

TEST(Isa, OneThatIsUnknownOrNotHereIsAnErrorThatNamesThoseThatAre) {
  for (const char* wanted : {"amx", "avx", "AVX2"}) {
    try {
      chosen_isa(wanted, {Isa::kAvx2, Isa::kAvx512}, true);
      FAIL() << wanted;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("avx2, avx512"), std::string::npos) << error.what();
    }
  }
}

TEST(Isa, AForcedOneEndsWithItsScope) {
  const Isa before = isa();
  {
    const ForcedIsa forced(available_isas().back());
    EXPECT_EQ(isa(), available_isas().back());
  }
  EXPECT_EQ(isa(), before);
}

}  // namespace
}  // namespace sherd::kernels
