#include "core/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/json_bounds.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd {
namespace {

TEST(SmallFile, ARegularFileIsReadThroughLinksToo) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/a", link = folder.path() + "/b";
  std::ofstream(path) << std::string("x\0y", 3);
  std::filesystem::create_symlink("a", link);
  EXPECT_EQ(read_small_file(path, 3), std::string("x\0y", 3));
  EXPECT_EQ(read_small_file(link, 3), std::string("x\0y", 3));
  EXPECT_EQ(problem_of_file(link, 3), "");
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(read_small_file(path, 3), "");
}

// No process writes to the pipe; /dev/zero has no end.
TEST(SmallFile, WhatIsNoRegularFileIsRefusedAndNotWaitedFor) {
  const test::TempFolder folder;
  const std::string pipe = folder.path() + "/pipe", zero = folder.path() + "/zero";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", zero);
  for (const std::string& path : {pipe, zero}) {
    EXPECT_EQ(test::error_text<DataError>([&] { read_small_file(path, 100); }),
              path + ": can't be read: it isn't a regular file.");
    EXPECT_EQ(problem_of_file(path, 100), "it isn't a regular file");
  }
  EXPECT_EQ(problem_of_file(folder.path(), 100), "it is a folder");
  EXPECT_EQ(problem_of_file(folder.path() + "/none", 100), "No such file or directory");
}

TEST(SmallFile, ALargerFileIsRefusedBeforeItIsRead) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/large";
  std::ofstream(path) << "x";
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // a hole: 1 TiB
  EXPECT_EQ(test::error_text<DataError>([&] { read_small_file(path, 1 << 20); }),
            path + ": can't be read: it has 1099511627776 bytes; at most 1048576 are allowed.");
}

TEST(JsonBounds, CountWhatAParserWouldMake) {
  EXPECT_NO_THROW(
      check_json_bounds(R"({"a,[{": [1, 2, "\"]]]", {}]})", "f", {.values = 7, .depth = 3}));
  EXPECT_EQ(test::error_text<DataError>([] { check_json_bounds("[1, 2, 3]", "f", {.values = 3}); }),
            "f: JSON of more than 3 values");
  EXPECT_EQ(test::error_text<DataError>([] { check_json_bounds("[[[", "f", {.depth = 2}); }),
            "f: JSON nested deeper than 2 levels");
  EXPECT_NO_THROW(check_json_bounds("\"", "f"));
  EXPECT_NO_THROW(check_json_bounds("\"\\", "f"));
}

}  // namespace
}  // namespace sherd
