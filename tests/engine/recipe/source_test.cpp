// Texts of recipes that are made to take all memory.
#include "engine/recipe/source.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/recipe/stored.h"
#include "tests/support/values/error_text.h"

namespace sherd::engine {
namespace {

// "[x, x, ..., x]"
std::string list(const std::string& item, int count) {
  std::string text = "[" + item;
  for (int i = 1; i < count; ++i) text += ", " + item;
  return text + "]";
}

std::string refusal(const std::string& text) {
  return test::error_text<UsageError>([&] { parse_recipe("forged.yaml", text); });
}

std::string with_aliases(int count) {
  return "run:\n  name: &a " + list("1", count) + "\n  output_dir: &b " + list("*a", count) +
         "\nmodel:\n  vocab_size: " + list("*b", count) + "\n";
}

TEST(RecipeSource, AliasesDontMakeASmallTextLarge) {
  const std::string refused =
      "forged.yaml: its values are longer than 2097152 characters, as aliases (*) repeat them.";
  EXPECT_EQ(refusal(with_aliases(3)), "(no error)");
  EXPECT_EQ(refusal(with_aliases(2000)), refused);
  EXPECT_EQ(refusal("run:\n  name: &a " + std::string(600'000, 'x') +
                    "\nmodel:\n  vocab_size: " + list("*a", 8) + "\n"),
            refused);
  EXPECT_TRUE(printed_values(with_aliases(2000)).empty());
}

TEST(RecipeSource, ATextIsNoLongerThanAFileMayBe) {
  const std::string text = "run:\n  name: x\n#" + std::string(1 << 20, 'x');
  EXPECT_EQ(refusal(text),
            fmt::format("forged.yaml: has {} bytes; a recipe has at most 1048576.", text.size()));
  EXPECT_TRUE(printed_values(text).empty());
}

}  // namespace
}  // namespace sherd::engine
