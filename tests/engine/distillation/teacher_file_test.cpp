#include "engine/distillation/teacher_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using checkpoint::posix_disk;

constexpr std::int64_t kVocab = 9;
const TeacherShape kShape{.rows = 3, .seq_length = 2, .top = 3, .data = 77};

std::vector<std::int32_t> ids_of(std::int64_t row) {
  const auto first = static_cast<std::int32_t>(row);
  return {first, 5, 8, 8, first, 5};
}
// Probabilities 1/2, 1/3, 1/6, and 1/2, 1/4, 1/4.
std::vector<float> values() {
  std::vector<float> logs;
  for (const double p : {1.0 / 2, 1.0 / 3, 1.0 / 6, 1.0 / 2, 1.0 / 4, 1.0 / 4}) {
    logs.push_back(static_cast<float>(std::log(p)));
  }
  return logs;
}

class TeacherFiles : public ::testing::Test {
 protected:
  void write() const {
    TeacherWriter writer(posix_disk(), path_, kShape);
    for (const std::int64_t row : {2, 0, 1}) writer.write(row, ids_of(row), values());
    EXPECT_FALSE(fs::exists(path_));
    writer.finish();
  }
  TeacherFile open(std::int64_t top, float temperature, TeacherShape shape = kShape) const {
    return {posix_disk(), path_, shape, {top, 0.5f, temperature}, kVocab};
  }
  std::string error_of(std::int64_t top, TeacherShape shape) const {
    try {
      open(top, 1.0f, shape);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }
  // Rows 1 and 2, of which the last token has no target.
  struct Filled {
    std::vector<std::int32_t> ids;
    std::vector<float> probabilities;
  };
  static Filled filled(const TeacherFile& file, std::int64_t top) {
    std::vector<std::int32_t> targets = {0, 0, 0, data::kNoTarget};
    Filled filled{std::vector<std::int32_t>(static_cast<std::size_t>(4 * top)),
                  std::vector<float>(static_cast<std::size_t>(4 * top))};
    data::Batch batch;
    batch.targets = {targets.data(), DType::kI32, 4};
    batch.teacher_ids = {filled.ids.data(), DType::kI32, 4 * top};
    batch.teacher_probabilities = {filled.probabilities.data(), DType::kF32, 4 * top};
    file.fill(1, 2, batch);
    return filled;
  }

  const test::TempFolder folder_;
  const std::string path_ = folder_.file("teacher.safetensors");
};

TEST_F(TeacherFiles, GiveTheLikeliestTokensWithTheirShares) {
  write();
  const Filled all = filled(open(3, 1.0f), 3);
  EXPECT_EQ(all.ids, (std::vector<std::int32_t>{1, 5, 8, 8, 1, 5, 2, 5, 8, 8, 2, 5}));
  EXPECT_FLOAT_EQ(all.probabilities[0], 1.0f / 2);
  EXPECT_FLOAT_EQ(all.probabilities[1], 1.0f / 3);
  EXPECT_FLOAT_EQ(all.probabilities[4], 1.0f / 4);
  const Filled two = filled(open(2, 1.0f), 2);
  EXPECT_EQ(two.ids, (std::vector<std::int32_t>{1, 5, 8, 1, 2, 5, 8, 2}));
  EXPECT_FLOAT_EQ(two.probabilities[0], 3.0f / 5);  // of 1/2 and 1/3
  EXPECT_FLOAT_EQ(two.probabilities[2], 2.0f / 3);  // of 1/2 and 1/4
}

// At temperature 1/2, probabilities are squared, then divided by their sum.
TEST_F(TeacherFiles, ApplyTheTemperature) {
  write();
  const Filled found = filled(open(3, 0.5f), 3);
  const float sum = 1.0f / 4 + 1.0f / 9 + 1.0f / 36;
  EXPECT_FLOAT_EQ(found.probabilities[0], 1.0f / 4 / sum);
  EXPECT_FLOAT_EQ(found.probabilities[2], 1.0f / 36 / sum);
}

TEST_F(TeacherFiles, HaveTheSameBytesInAnyOrderOfRows) {
  write();
  const std::string first = folder_.read("teacher.safetensors");
  const std::uint64_t hash = open(3, 1.0f).hash();
  TeacherWriter writer(posix_disk(), path_, kShape);
  for (const std::int64_t row : {0, 1, 2}) writer.write(row, ids_of(row), values());
  writer.finish();
  EXPECT_EQ(folder_.read("teacher.safetensors"), first);
  EXPECT_EQ(open(3, 1.0f).hash(), hash);
}

TEST_F(TeacherFiles, AreNotThereUnlessTheyAreComplete) {
  {
    TeacherWriter writer(posix_disk(), path_, kShape);
    writer.write(0, ids_of(0), values());
  }
  EXPECT_TRUE(fs::is_empty(folder_.file(".")));
}

TEST_F(TeacherFiles, LeaveNothingOnADiskThatIsFull) {
  for (const char* call : {"allocate", "pwrite", "fsync"}) {
    test::HookedDisk disk([&](const test::DiskCall& made) -> std::optional<std::int64_t> {
      if (made.name == call) return -ENOSPC;
      return std::nullopt;
    });
    const auto write = [&] {
      TeacherWriter writer(disk, path_, kShape);
      for (const std::int64_t row : {0, 1, 2}) writer.write(row, ids_of(row), values());
      writer.finish();
    };
    EXPECT_THROW(write(), checkpoint::DiskError) << call;
    EXPECT_TRUE(fs::is_empty(folder_.file("."))) << call;
  }
}

TEST_F(TeacherFiles, AreRefusedForOtherSamples) {
  write();
  TeacherShape shape = kShape;
  shape.data = 78;
  EXPECT_NE(error_of(3, shape).find("other samples"), std::string::npos);
  shape = kShape;
  shape.rows = 4;
  EXPECT_NE(error_of(3, shape).find("has 3 samples, and the run's steps need 4"),
            std::string::npos);
  EXPECT_NE(error_of(4, kShape).find("has 3 tokens"), std::string::npos);
  shape.rows = 2;
  EXPECT_EQ(error_of(3, shape), "");
}

TEST_F(TeacherFiles, AreReadOnlyIfEveryByteOfASampleIsRight) {
  write();
  const std::string whole = folder_.read("teacher.safetensors");
  constexpr std::size_t kBytesOfTensor = 3 * 2 * 3 * 4;
  for (const std::size_t from_end : {1 * kBytesOfTensor - 30, 2 * kBytesOfTensor - 30}) {
    std::string bytes = whole;
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 1);
    folder_.write("teacher.safetensors", bytes);
    const TeacherFile file = open(3, 1.0f);
    EXPECT_THROW(filled(file, 3), DataError) << from_end;
  }
}

}  // namespace
}  // namespace sherd::engine
