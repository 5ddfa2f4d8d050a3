// Export: whole tensors in one plain file, rounded by us, whole or not there.
#include "checkpoint/interchange/hdf5_export.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/checkpoint/support/allocation_meter.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/hdf5_reading.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Hdf5Content;
using test::read_hdf5;
using test::sample_tensors;

class Hdf5Export : public testing::Test {
 protected:
  std::string build(const std::vector<sharding::StateTensor>& tensors, int world = 3) {
    return test::build_checkpoint(folder.path(), 1, tensors, test::random_cut(tensors, world, 4))
        .path;
  }
  std::vector<std::string> names() const { return list_directory(posix_disk(), folder.path()); }

  test::TempFolder folder;
};

std::string path_of(const sharding::StateTensor& tensor) {
  return "/tensors/" + tensor.name + "/" + tensor.kind;
}

TEST_F(Hdf5Export, HoldsWeightsAloneUnlessAskedForMore) {
  const auto tensors = sample_tensors();
  const Checkpoint checkpoint(posix_disk(), build(tensors));
  const std::string to = folder.file("weights.h5");
  EXPECT_EQ(export_file(posix_disk(), checkpoint, {to, DType::kF32, {"param"}}).num_tensors, 4);
  const std::string all = folder.file("all.h5");
  const ExportResult result = export_file(posix_disk(), checkpoint, {all, DType::kF32, {}});
  EXPECT_EQ(result.num_tensors, 12);
  EXPECT_EQ(result.bytes, static_cast<std::int64_t>(fs::file_size(all)));
  for (const sharding::StateTensor& tensor : tensors) {
    Hdf5Content content;
    EXPECT_EQ(read_hdf5(to, path_of(tensor), content), tensor.kind == "param");
    ASSERT_TRUE(read_hdf5(all, path_of(tensor), content));
    EXPECT_FALSE(content.is_virtual);
    EXPECT_EQ(std::vector<std::int64_t>(content.shape.begin(), content.shape.end()), tensor.shape);
    EXPECT_EQ(content.raw, test::element_bytes(tensor, 0, tensor.numel(), 0));
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"all.h5", "step-0000000001", "weights.h5"}));
}

// The nearer of the two bf16 around an f32, distances taken in double; the even one of equals.
std::uint16_t nearest_bf16(float value) {
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto high = static_cast<std::uint16_t>(low + 1);  // away from zero
  const auto distance = [value](std::uint16_t bits) {
    return std::abs(
        static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16)) -
        static_cast<double>(value));
  };
  if (distance(low) == distance(high)) return low % 2 == 0 ? low : high;
  return distance(low) < distance(high) ? low : high;
}

TEST_F(Hdf5Export, RoundsToNearestEven) {
  const auto tensors = sample_tensors();
  const Checkpoint checkpoint(posix_disk(), build(tensors));
  const std::string to = folder.file("half.h5");
  export_file(posix_disk(), checkpoint, {to, DType::kBF16, {}});
  int ties = 0;
  for (const sharding::StateTensor& tensor : tensors) {
    Hdf5Content content;
    ASSERT_TRUE(read_hdf5(to, path_of(tensor), content));
    const std::string bytes = test::element_bytes(tensor, 0, tensor.numel(), 0);
    for (std::size_t i = 0; i < content.values.size(); ++i) {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      std::uint16_t found = 0;
      std::memcpy(&found, content.raw.data() + 2 * i, 2);
      ASSERT_EQ(found, nearest_bf16(value)) << value;
      // And libhdf5 reads it as exactly that.
      ASSERT_EQ(std::bit_cast<std::uint32_t>(content.values[i]), static_cast<std::uint32_t>(found)
                                                                     << 16);
      ties += (std::bit_cast<std::uint32_t>(value) & 0xffffu) == 0x8000u;
    }
  }
  EXPECT_GT(ties, 100);
}

TEST_F(Hdf5Export, WidensExactly) {
  const auto tensors = sample_tensors(DType::kBF16);
  const Checkpoint checkpoint(posix_disk(), build(tensors));
  const std::string to = folder.file("wide.h5");
  export_file(posix_disk(), checkpoint, {to, DType::kF32, {"exp_avg"}});
  Hdf5Content content;
  ASSERT_TRUE(read_hdf5(to, path_of(tensors[4]), content));
  const std::string bytes = test::element_bytes(tensors[4], 0, tensors[4].numel(), 0);
  ASSERT_EQ(content.raw.size(), 2 * bytes.size());
  for (std::size_t i = 0; i < content.values.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(content.values[i]), static_cast<std::uint32_t>(half)
                                                                   << 16);
  }
}

TEST_F(Hdf5Export, NeedsABlockPerShardHoweverLargeATensorIs) {
  const std::vector<sharding::StateTensor> tensors = {
      {"wide.weight", "param", {3000, 1501}, DType::kF32}, {"b", "param", {3}, DType::kF32}};
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 2)).path;
  const Checkpoint checkpoint(posix_disk(), path);
  const test::AllocationMeter meter;
  export_file(posix_disk(), checkpoint, {folder.file("wide.h5"), DType::kF32, {"param"}});
  EXPECT_LE(meter.largest(), static_cast<std::size_t>(2 * kBlockBytes));
  Hdf5Content content;
  ASSERT_TRUE(read_hdf5(folder.file("wide.h5"), path_of(tensors[0]), content));
  EXPECT_EQ(content.raw, test::element_bytes(tensors[0], 0, tensors[0].numel(), 0));
}

TEST_F(Hdf5Export, NeverReplacesAndSaysWhatIsntThere) {
  const Checkpoint checkpoint(posix_disk(), build(sample_tensors()));
  const std::string to = folder.write("mine.h5", "precious");
  EXPECT_EQ(test::error_text<UsageError>([&] {
              export_file(posix_disk(), checkpoint, {to, DType::kF32, {"param"}});
            }),
            to + ": exists already; name another file or remove it");
  EXPECT_EQ(folder.read("mine.h5"), "precious");
  EXPECT_NE(test::error_text<UsageError>([&] {
              export_file(posix_disk(), checkpoint,
                          {folder.file("x.h5"), DType::kF32, {"param", "momentum"}});
            }).find("holds no momentum to export"),
            std::string::npos);
  EXPECT_EQ(names(), (std::vector<std::string>{"mine.h5", "step-0000000001"}));
}

TEST_F(Hdf5Export, DamageLeavesNothingBehind) {
  const std::string path = build(sample_tensors());
  const Checkpoint checkpoint(posix_disk(), path);
  const std::string shard = path + "/" + shard_name(2, 3);
  std::string bytes = test::read_text(shard);
  bytes[static_cast<std::size_t>(checkpoint.manifest().shards[2].datasets[0].offset)] ^= 1;
  test::write_text(shard, bytes);
  EXPECT_NE(test::error_text<DataError>([&] {
              export_file(posix_disk(), checkpoint, {folder.file("x.h5"), DType::kF32, {"param"}});
            }).find(shard + ": bytes ["),
            std::string::npos);
  EXPECT_EQ(names(), std::vector<std::string>{"step-0000000001"});
}

TEST_F(Hdf5Export, ADiskThatFailsAtAnyCallLeavesNothingBehind) {
  const Checkpoint checkpoint(posix_disk(), build(sample_tensors()));
  for (int failing = 0;; ++failing) {
    int calls = 0;
    test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
      // The look at what is there already isn't counted, and what comes after the failure works.
      if (call.name == "lstat" || calls++ != failing) return std::nullopt;
      return -ENOSPC;
    });
    const std::string to = folder.file("x.h5");
    const std::string message = test::error_text<DataError>([&] {
      export_file(disk, checkpoint, {to, DType::kF32, {"param"}});
    });
    if (calls <= failing) {  // no call was left to fail
      EXPECT_EQ(message, "(no error)");
      EXPECT_GT(failing, 5);
      return;
    }
    EXPECT_NE(message.find("No space left"), std::string::npos) << message;
    // Once it has its name, only making that durable can still fail: then it is whole.
    if (exists(posix_disk(), to)) {
      EXPECT_TRUE(message.starts_with(folder.path() + ": ")) << message;
      Hdf5Content content;
      EXPECT_TRUE(read_hdf5(to, "/tensors/final_norm.bias/param", content));
      fs::remove(to);
    }
    EXPECT_EQ(names(), std::vector<std::string>{"step-0000000001"}) << message;
  }
}

}  // namespace
}  // namespace sherd::checkpoint
