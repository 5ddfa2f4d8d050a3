// A shard's file as libhdf5 and its tools see it, when code other than libhdf5 writes the data
// into it.
#include "checkpoint/format/hdf5_skeleton.h"

#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/format/hdf5_memory_driver.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

const std::vector<sharding::StateTensor> kTensors = {
    {"w", "param", {100, 30}, DType::kF32},
    {"b", "param", {30}, DType::kF32},
    {"w", "exp_avg", {100, 30}, DType::kBF16},
};

ShardInfo small_shard() {
  ShardInfo shard;
  shard.datasets = {{"param", DType::kF32, 2003, 0, {}}, {"exp_avg", DType::kBF16, 17, 0, {}}};
  shard.pieces = {{0, 1000, 2000, 0}, {1, 4, 3, 2000}, {2, 0, 17, 0}};
  return shard;
}

const ShardLabel kLabel = {"0123456789abcdef0123456789abcdef", 1200, 3, 4};

/// Writes what isn't data, and the data, as the trainer does: at their places.
void write_file(const std::string& path, const Hdf5Skeleton& skeleton, const ShardInfo& shard,
                const std::vector<std::string>& data) {
  std::string bytes(static_cast<std::size_t>(skeleton.file_bytes), '?');
  for (const FileRange& range : skeleton.metadata) {
    bytes.replace(static_cast<std::size_t>(range.offset), range.bytes.size(), range.bytes);
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(static_cast<std::int64_t>(data[i].size()), shard.datasets[i].bytes());
    bytes.replace(static_cast<std::size_t>(skeleton.offsets[i]), data[i].size(), data[i]);
  }
  ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), skeleton.file_bytes);
  std::ofstream(path, std::ios::binary) << bytes;
}

template <class T>
std::string as_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Reads a dataset with libhdf5's own file driver, converted by libhdf5.
template <class T>
std::vector<T> read_back(const std::string& path, const char* name, hid_t type) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_GE(file, 0);
  const hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
  EXPECT_GE(dataset, 0) << name;
  const hid_t space = H5Dget_space(dataset);
  std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  H5Sclose(space);
  H5Dclose(dataset);
  H5Fclose(file);
  return values;
}

TEST(Hdf5Skeleton, Libhdf5ReadsWhatWasWrittenAtItsOffsets) {
  const test::TempFolder folder;
  const ShardInfo shard = small_shard();
  const Hdf5Skeleton skeleton = build_hdf5_skeleton(kLabel, shard, kTensors);
  std::vector<float> param(2003);
  for (std::size_t i = 0; i < param.size(); ++i) param[i] = static_cast<float>(i) * 0.37f - 100;
  std::vector<BFloat16> moment;
  std::vector<float> moment_f32;  // bf16 is the upper half of f32: exact by definition
  for (int i = 0; i < 17; ++i) {
    const auto value = static_cast<float>((i - 8) * 0.0625);
    moment.emplace_back(value);
    moment_f32.push_back(value);
  }
  moment[0].bits = 0x0001;  // the smallest subnormal, 2^-133
  moment_f32[0] = 0x1p-133f;
  moment[1].bits = 0x7f7f;  // the largest finite, (2 - 2^-7) 2^127
  moment_f32[1] = 0x1.fep127f;

  const std::string path = folder.file("shard.h5");
  write_file(path, skeleton, shard, {as_bytes(param), as_bytes(moment)});
  EXPECT_EQ(read_back<float>(path, "/param", H5T_NATIVE_FLOAT), param);
  EXPECT_EQ(read_back<float>(path, "/exp_avg", H5T_NATIVE_FLOAT), moment_f32);
  // rows of /tensor-names, which is in the alphabet's order: b, w
  EXPECT_EQ(read_back<std::int64_t>(path, "/piece-table/param", H5T_NATIVE_INT64),
            (std::vector<std::int64_t>{1, 1000, 2000, 0, 0, 4, 3, 2000}));
}

std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t got = ::fread(part.data(), 1, part.size(), pipe)) {
    text.append(part.data(), got);
  }
  return ::pclose(pipe) == 0 ? text : "failed: " + text;
}

TEST(Hdf5Skeleton, H5dumpShowsItsLabel) {
  const test::TempFolder folder;
  const ShardInfo shard = small_shard();
  const std::string path = folder.file("shard.h5");
  write_file(path, build_hdf5_skeleton(kLabel, shard, kTensors), shard,
             {std::string(8012, '\0'), std::string(34, '\0')});
  const std::string text = output_of("h5dump " + path + " 2>&1");
  for (const char* expected :
       {"ATTRIBUTE \"save_uuid\"", "\"0123456789abcdef0123456789abcdef\"", "ATTRIBUTE \"step\"",
        "(0): 1200", "ATTRIBUTE \"num_shards\"", "DATASET \"exp_avg\"", "16-bit little-endian",
        "DATASET \"tensor-names\"", "\"b\", \"w\""}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected << " isn't in:\n" << text;
  }
}

TEST(Hdf5Skeleton, EverythingThatIsNotDataIsAccountedFor) {
  const ShardInfo shard = small_shard();
  const Hdf5Skeleton skeleton = build_hdf5_skeleton(kLabel, shard, kTensors);
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // offset, bytes
  for (const FileRange& range : skeleton.metadata) {
    parts.emplace_back(range.offset, std::ssize(range.bytes));
  }
  for (std::size_t i = 0; i < skeleton.offsets.size(); ++i) {
    EXPECT_EQ(skeleton.offsets[i] % 4096, 0);
    parts.emplace_back(skeleton.offsets[i], shard.datasets[i].bytes());
  }
  std::sort(parts.begin(), parts.end());
  std::int64_t position = 0;
  for (const auto& [offset, bytes] : parts) {
    EXPECT_EQ(offset, position);
    position += bytes;
  }
  EXPECT_EQ(position, skeleton.file_bytes);
}

TEST(Hdf5Skeleton, TheSameShardHasTheSameBytes) {
  const Hdf5Skeleton first = build_hdf5_skeleton(kLabel, small_shard(), kTensors);
  const Hdf5Skeleton second = build_hdf5_skeleton(kLabel, small_shard(), kTensors);
  ASSERT_EQ(first.metadata.size(), second.metadata.size());
  for (std::size_t i = 0; i < first.metadata.size(); ++i) {
    EXPECT_EQ(first.metadata[i].bytes, second.metadata[i].bytes);
  }
}

// 24 TiB of state: the file is laid out, nothing of that size is ever held.
TEST(Hdf5Skeleton, ItsMemoryDoesntFollowTheData) {
  const std::int64_t numel = std::int64_t{2} << 40;
  std::vector<sharding::StateTensor> tensors;
  ShardInfo shard;
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
    shard.pieces.push_back({static_cast<int>(tensors.size()), 0, numel, 0});
    tensors.push_back({"w", kind, {numel}, DType::kF32});
    shard.datasets.push_back({kind, DType::kF32, numel, 0, {}});
  }
  const Hdf5Skeleton skeleton = build_hdf5_skeleton(kLabel, shard, tensors);
  EXPECT_GT(skeleton.file_bytes, 3 * 4 * numel);
  std::int64_t held = 0;
  for (const FileRange& range : skeleton.metadata) held += std::ssize(range.bytes);
  EXPECT_LT(held, 128 << 10);
  EXPECT_TRUE(std::is_sorted(skeleton.offsets.begin(), skeleton.offsets.end()));
}

TEST(Hdf5Skeleton, ManyKindsAndPiecesStayInOrder) {
  for (const int num_kinds : {0, 1, 8, 9, 40}) {
    std::vector<sharding::StateTensor> tensors;
    ShardInfo shard;
    for (int k = 0; k < num_kinds; ++k) {
      const std::string kind = "kind_" + std::string(1, static_cast<char>('a' + k / 26)) +
                               std::string(1, static_cast<char>('a' + k % 26));
      std::int64_t numel = 0;
      for (int t = 0; t < 50; ++t) {
        shard.pieces.push_back({static_cast<int>(tensors.size()), 0, t + 1, numel});
        tensors.push_back({"tensor." + std::to_string(t), kind, {t + 1}, DType::kF32});
        numel += t + 1;
      }
      shard.datasets.push_back({kind, DType::kF32, numel, 0, {}});
    }
    const Hdf5Skeleton skeleton = build_hdf5_skeleton(kLabel, shard, tensors);
    EXPECT_TRUE(std::is_sorted(skeleton.offsets.begin(), skeleton.offsets.end())) << num_kinds;
    const test::TempFolder folder;
    const std::string path = folder.file("shard.h5");
    std::vector<std::string> data;
    std::vector<float> values(1275);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    for (int k = 0; k < num_kinds; ++k) data.push_back(as_bytes(values));
    write_file(path, skeleton, shard, data);
    for (const ShardDataset& dataset : shard.datasets) {
      EXPECT_EQ(read_back<float>(path, dataset.kind.c_str(), H5T_NATIVE_FLOAT), values);
    }
  }
}

TEST(MemoryFile, WhatWasNotWrittenReadsAsZeros) {
  MemoryFile file;
  file.write(10'000, "abc", 3);
  EXPECT_EQ(file.bytes(), 10'003);
  EXPECT_EQ(file.range(9'998, 10'005), std::string("\0\0abc\0\0", 7));
  EXPECT_EQ(file.resident_bytes(), 4096);
  file.write(8190, "xyzw", 4);  // over the edge of a page
  EXPECT_EQ(file.range(8188, 8196), std::string("\0\0xyzw\0\0", 8));
  EXPECT_EQ(file.resident_bytes(), 2 * 4096);
}

}  // namespace
}  // namespace sherd::checkpoint
