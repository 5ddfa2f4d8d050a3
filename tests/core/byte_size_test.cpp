#include "core/byte_size.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/values/error_text.h"

namespace sherd {
namespace {

TEST(ByteSize, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("1B"), 1);
  EXPECT_EQ(parse_bytes("80GiB"), 85'899'345'920);
  EXPECT_EQ(parse_bytes("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 TiB"), 1'649'267'441'664);
  EXPECT_EQ(parse_bytes("0.5KiB"), 512);
  EXPECT_EQ(parse_bytes("2.5 KB"), 2'500);
  EXPECT_EQ(parse_bytes("3MB") + parse_bytes("3MiB"), 3'000'000 + 3'145'728);
  EXPECT_EQ(parse_bytes("1TB"), 1'000'000'000'000);
  EXPECT_EQ(parse_bytes("8388607TiB"), 8'388'607LL << 40);
}

TEST(ByteSize, RefusesWhatIsNoSizeAndSaysWhatIs) {
  const struct {
    const char* text;
    const char* part;
  } cases[] = {{"", "isn't a size"},
               {"GiB", "isn't a size"},
               {"eighty GiB", "isn't a size"},
               {"80", "has no unit"},
               {"80 gb", "unknown unit"},
               {"80G", "unknown unit \"G\""},
               {"80PiB", "unknown unit"},
               {"80GiB!", "unknown unit"},
               {"80  GiB", "unknown unit"},
               {"1e3GiB", "unknown unit"},
               {"-1GiB", "less than one"},
               {"0GiB", "less than one"},
               {"0.5B", "less than one"},
               {"nanGiB", "isn't a size"},
               {"infB", "isn't a size"},
               {"8388608TiB", "63 bits"},
               {"1e400GiB", "unknown unit"},
               {"0x10GiB", "unknown unit"},
               {"99999999999999999999B", "63 bits"},
               {" 1GiB", "isn't a size"}};
  for (const auto& [text, part] : cases) {
    const std::string error = test::error_text<UsageError>([&] { parse_bytes(text); });
    EXPECT_NE(error.find(part), std::string::npos) << '"' << text << "\": " << error;
    EXPECT_NE(error.find("expected a number and a unit (B, KB"), std::string::npos) << error;
  }
}

TEST(ByteSize, ATableIsWrittenInAUnitOfAtMostFourDigits) {
  EXPECT_EQ(unit_for(0).name, "B");
  EXPECT_EQ(unit_for(9'999).name, "B");
  EXPECT_EQ(unit_for(10'000).name, "KiB");
  EXPECT_EQ(unit_for(std::int64_t{80} << 30).name, "GiB");
  EXPECT_EQ(unit_for(std::int64_t{1} << 62).name, "TiB");
  EXPECT_EQ(unit_for(std::int64_t{80} << 30).text(std::int64_t{3} << 29), "1.5");
  EXPECT_EQ(unit_for(std::int64_t{80} << 30).text(0), "-");
}

}  // namespace
}  // namespace sherd
