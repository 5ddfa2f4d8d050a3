#include "kernels/device_common/matmul_table.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/libraries.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::kernels::device_common {
namespace {

const MatmulPlace kHere{"NVIDIA H100 80GB HBM3", "13.1.0"};

// Written down by hand: a file of last year's must be read the same.
constexpr const char* kRow =
    "m=2048 n=8192 k=512 a=t b=n in=bf16 out=bf16 epilogue=gelu_bias add=0 tf32=0 deterministic=1 "
    "alignment=16 "
    "workspace=33554432 -> id=66 tile=20 split=1 reduction=0 swizzle=1 custom=3 stages=35 inner=2 "
    "cluster=4";

MatmulKey key() {
  return {.m = 2048,
          .n = 8192,
          .k = 512,
          .transpose_a = true,
          .transpose_b = false,
          .in = DType::kBF16,
          .out = DType::kBF16,
          .epilogue = MatmulEpilogue::kGeluBias,
          .add_to_output = false,
          .allow_tf32 = false,
          .deterministic = true,
          .alignment = 16,
          .workspace_bytes = 32 << 20};
}

std::string file_with(const std::string& rows) {
  return "# a remark\n\n[NVIDIA H100 80GB HBM3, cuBLASLt 13.1.0]\n" + rows + "\n";
}

TEST(MatmulTable, ARowIsReadAsItIsWritten) {
  const MatmulTable table(file_with(std::string(kRow) + "  # 101.2 us, not 108.9"), "t.txt", kHere);
  const MatmulAlgorithm* found = table.find(key());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, (MatmulAlgorithm{66, 20, 1, 0, 1, 3, 35, 2, 4}));
  EXPECT_EQ(table.text(), "1 measured matmul algorithm of t.txt");
  EXPECT_NE(with_rows("", kHere, {{key(), *found, ""}}).find(std::string(kRow) + "\n"),
            std::string::npos);
}

// Each part of a key alone makes it another one.
TEST(MatmulTable, AnotherKeyHasNoRow) {
  const MatmulTable table(file_with(kRow), "t.txt", kHere);
  std::vector<MatmulKey> others(13, key());
  others[0].m = 1024;
  others[1].n = 1;
  others[2].k = 64;
  others[3].transpose_a = false;
  others[4].transpose_b = true;
  others[5].in = DType::kF16;
  others[6].out = DType::kF32;
  others[7].epilogue = MatmulEpilogue::kBias;
  others[8].add_to_output = true;
  others[9].allow_tf32 = true;
  others[10].deterministic = false;
  others[11].alignment = 2;
  others[12].workspace_bytes = 0;
  for (const MatmulKey& other : others) {
    EXPECT_EQ(table.find(other), nullptr) << text_of(other);
    EXPECT_EQ(matmul_key_of(text_of(other)), other);
    EXPECT_NE(text_of(other), text_of(key()));
  }
}

TEST(MatmulTable, RowsOfOtherGpusAndVersionsAreIgnoredAndCounted) {
  const std::string text = file_with(kRow);
  for (const MatmulPlace& place :
       {MatmulPlace{"NVIDIA H200", "13.1.0"}, MatmulPlace{kHere.gpu, "13.1.1"}}) {
    const MatmulTable table(text, "t.txt", place);
    EXPECT_EQ(table.find(key()), nullptr);
    EXPECT_EQ(
        table.text(),
        "0 measured matmul algorithms of t.txt (1 of other GPUs or cuBLASLt versions ignored)");
  }
}

TEST(MatmulTable, TuningReplacesTheRowsOfItsPlaceAndKeepsTheOthers) {
  const MatmulPlace h200{"NVIDIA H200", "13.1.0"};
  MatmulKey other = key();
  other.n = 77;
  const MatmulRow row{other, {.id = 5}, "1.0 us, not 2.0"};
  const std::string both = with_rows(file_with(kRow), h200, {row});
  EXPECT_NE(MatmulTable(both, "t", kHere).find(key()), nullptr);
  EXPECT_EQ(MatmulTable(both, "t", kHere).find(other), nullptr);
  EXPECT_NE(MatmulTable(both, "t", h200).find(other), nullptr);
  const std::string again = with_rows(both, kHere, {row});
  EXPECT_EQ(MatmulTable(again, "t", kHere).find(key()), nullptr);
  EXPECT_EQ(MatmulTable(again, "t", kHere).find(other)->id, 5);
  EXPECT_EQ(MatmulTable(again, "t", h200).num_rows(), 1u);
}

std::string error_of(const std::string& rows) {
  try {
    MatmulTable(file_with(rows), "t.txt", kHere);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(MatmulTable, WhatCantBeReadNamesItsLine) {
  const std::string row = kRow;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = row;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_EQ(error_of(with("k=512", "k=five")),
            "t.txt:4: \"k=five\" can't be read. `./dev gpu-check --tune` writes the file again.");
  EXPECT_NE(error_of(with("in=bf16", "in=bf17")).find("\"in=bf17\" can't be read"),
            std::string::npos);
  EXPECT_NE(error_of(with("a=t ", "")).find("found \"b=n\" where a=..."), std::string::npos);
  EXPECT_NE(error_of(with(" -> ", " ")).find("a row needs \"->\""), std::string::npos);
  EXPECT_NE(error_of(row + " more=1").find("\"more=1\" is one word too many"), std::string::npos);
  EXPECT_NE(error_of(row + "\n" + row).find("t.txt:5: this matmul has a row already"),
            std::string::npos);
  EXPECT_THROW(MatmulTable(row, "t.txt", kHere), DataError) << "no place above it";
}

// What kernels/cuda/linear.h's sums may be: split into f32 sums that are added in order, or not at all with a bias in 16
// bits; and anything where no bits are promised.
TEST(MatmulTable, ARowCantBreakWhatItsKeyPromises) {
  const std::string row = kRow;
  const auto in_place = [&](const std::string& epilogue, int deterministic, int reduction) {
    std::string text = row;
    text.replace(text.find("gelu_bias"), 9, epilogue);
    text.replace(text.find("deterministic=1"), 15, fmt::format("deterministic={}", deterministic));
    return error_of(text.replace(text.find("split=1 reduction=0"), 19,
                                 fmt::format("split=4 reduction={}", reduction)));
  };
  EXPECT_EQ(in_place("none", 1, 2), "");
  EXPECT_NE(in_place("none", 1, 1).find("reduction=1 isn't one that this matmul allows"),
            std::string::npos);
  EXPECT_NE(in_place("none", 1, 4), "");
  EXPECT_NE(in_place("none", 1, 0), "");
  EXPECT_NE(in_place("bias", 0, 2), "");
  EXPECT_EQ(in_place("none", 0, 1), "");
}

TEST(MatmulTable, ARowIsWorthWritingWhereItIsFasterThanTheHeuristicsFirst) {
  const auto timed = [](std::vector<double> seconds) {
    std::vector<TimedAlgorithm> all;
    for (const double each : seconds) all.push_back({{.id = std::ssize(all) + 1}, each});
    return all;
  };
  const auto best = row_worth_writing(key(), timed({10e-6, 12e-6, 8e-6, 9e-6}));
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0].algorithm.id, 3);
  EXPECT_EQ(best[0].remark, "8.0 us, not 10.0");
  EXPECT_TRUE(row_worth_writing(key(), timed({10e-6, 9.9e-6})).empty()) << "within noise";
  EXPECT_TRUE(row_worth_writing(key(), timed({8e-6, 9e-6})).empty());
  EXPECT_TRUE(row_worth_writing(key(), {}).empty());
}

TEST(MatmulTable, AFileThatWasNamedMustBeThere) {
  ::setenv("SHERD_MATMUL_TABLE", "/nowhere/table.txt", 1);
  EXPECT_THROW(matmul_table_file(), UsageError);
  ::setenv("SHERD_MATMUL_TABLE", "", 1);
  EXPECT_EQ(matmul_table_file(), "") << "none is asked for";
  ::unsetenv("SHERD_MATMUL_TABLE");
  EXPECT_EQ(matmul_table_file(), "") << "none is next to the tests";
}

TEST(MatmulTable, ItsFingerprintFollowsItsBytesAlone) {
  const test::TempFolder folder;
  const auto fingerprint_of = [&](const char* name, const std::string& text) {
    ::setenv("SHERD_MATMUL_TABLE", folder.write(name, text).c_str(), 1);
    return matmul_table_fingerprint();
  };
  const std::uint64_t one = fingerprint_of("a.txt", file_with(kRow));
  EXPECT_EQ(fingerprint_of("b.txt", file_with(kRow)), one);
  EXPECT_NE(fingerprint_of("a.txt", file_with("")), one);
  ::unsetenv("SHERD_MATMUL_TABLE");
  EXPECT_EQ(matmul_table_fingerprint(), 0u);
}

}  // namespace
}  // namespace sherd::kernels::device_common
