// Sizes that keep the code readable: of files, functions, folders, and of what a training step includes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/where.h"

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = SHERD_SOURCE_DIR;

// All sources, relative to the source folder, tests included.
std::vector<fs::path> sources() {
  const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<fs::path> files;
  for (const char* folder : {"checkpoint", "core", "engine", "include", "kernels", "optim",
                             "python", "sharding", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (extensions.contains(entry.path().extension().string())) {
        files.push_back(fs::relative(entry.path(), kRoot));
      }
    }
  }
  return files;
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream stream(kRoot / file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

struct Function {
  std::string name;  ///< its first line
  std::size_t num_lines = 0;
};

// Functions of a formatted source: a brace alone in the first or third column ends one, which began at the last line
// that is no further to the right. (A type's brace has a semicolon, and a namespace's a comment.)
std::vector<Function> functions_of(const std::vector<std::string>& lines) {
  std::vector<Function> functions;
  for (const std::string indentation : {"", "  "}) {
    for (std::size_t end = 0; end < lines.size(); ++end) {
      if (lines[end] != indentation + "}") continue;
      for (std::size_t begin = end; begin-- > 0;) {
        const std::size_t column = lines[begin].find_first_not_of(' ');
        if (column > indentation.size() || lines[begin].starts_with("#")) continue;
        functions.push_back({lines[begin], end - begin + 1});
        break;
      }
    }
  }
  return functions;
}

TEST(Sizes, FindFunctionsOfFilesAndOfClasses) {
  const std::vector<Function> found =
      functions_of({"namespace {", "", "int f(int a,", "      int b) {", "#if X", "  if (a) {",
                    "    return b;", "  }", "#endif", "  return a;", "}", "", "struct S {",
                    "  int g() {", "    return 1;", "  }", "};", "}  // namespace"});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, "int f(int a,");
  EXPECT_EQ(found[0].num_lines, 9u);
  EXPECT_EQ(found[2].name, "  int g() {");
  EXPECT_EQ(found[2].num_lines, 3u);
}

TEST(Sizes, NoFileHasMoreThan400Lines) {
  const std::vector<fs::path> files = sources();
  EXPECT_GT(files.size(), 1000u);
  for (const fs::path& file : files) EXPECT_LE(lines_of(file).size(), 400u) << file;
}

TEST(Sizes, NoFunctionHasMoreThan80Lines) {
  std::size_t num_functions = 0;
  for (const fs::path& file : sources()) {
    for (const Function& function : functions_of(lines_of(file))) {
      ++num_functions;
      EXPECT_LE(function.num_lines, 80u) << file << ": " << function.name;
    }
  }
  EXPECT_GT(num_functions, 5000u);
}

TEST(Sizes, NoFolderHasMoreThan24SubjectsWithoutAReason) {
  std::map<std::string, std::set<std::string>> subjects;
  for (const fs::path& file : sources()) {
    subjects[file.parent_path().string()].insert(file.stem().string());
  }
  std::string page;
  for (const std::string& line : lines_of("docs/architecture.md")) {
    page += line + "\n";
    if (line.starts_with("## Mesh")) break;
  }
  const std::size_t table = page.find("Folders with more than 24 subjects");
  ASSERT_NE(table, std::string::npos);
  for (const auto& [folder, names] : subjects) {
    const bool has_reason = page.find("`" + folder + "`", table) != std::string::npos;
    EXPECT_EQ(names.size() > 24, has_reason) << folder << " has " << names.size();
  }
}

}  // namespace
