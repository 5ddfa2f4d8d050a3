#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "engine/recipe/fields.h"
#include "engine/recipe/text.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

TEST(RecipeDocs, ThePageIsWhatTheTablePrints) {
  std::ifstream file(SHERD_SOURCE_DIR "/docs/recipe.md");
  std::istringstream table(recipe_markdown());
  const char* advice = "docs/recipe.md is old: run ./dev docs";
  for (std::string expected, line; std::getline(table, expected);) {
    ASSERT_TRUE(std::getline(file, line)) << advice << "; it ends before: " << expected;
    ASSERT_EQ(line, expected) << advice;
  }
  EXPECT_EQ(file.get(), std::ifstream::traits_type::eof()) << advice;
}

TEST(RecipeDocs, EveryKeyIsUniqueHasHelpAndABlock) {
  std::set<std::string_view> keys, blocks;
  for (const Block& block : recipe_blocks()) blocks.insert(block.name);
  for (const Field& field : recipe_fields()) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    EXPECT_TRUE(blocks.contains(field.block())) << field.key;
    EXPECT_TRUE(field.help.ends_with('.')) << field.key;
  }
}

TEST(RecipeDocs, HelpNamesEveryKeyAndFitsTheTerminal) {
  const std::string help = recipe_help();
  for (const Field& field : recipe_fields()) {
    EXPECT_NE(help.find("  " + std::string(field.name()) + "  ("), std::string::npos) << field.key;
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace sherd::engine
