// What `inspect` prints for people and programs, and digests that don't depend on who saved the checkpoint.
#include "checkpoint/inspect.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using test::sample_tensors;

std::vector<std::string> digests(const std::string& path) {
  return tensor_digests(Checkpoint(posix_disk(), path));
}

TEST(Inspect, TheTableNamesEveryTensorItsKindsAndTheGlobalValues) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors(DType::kBF16);
  const test::Built built =
      test::build_checkpoint(folder.path(), 1200, tensors, test::even_cut(tensors, 3));
  const std::string table = inspect_table(Checkpoint(posix_disk(), built.path));
  for (const std::string line :
       {"  step       1200\n", "  written by 3 ranks\n",
        // 524 elements of 4 + 2 + 2 bytes
        "  state      4.1 KiB in 12 tensors\n", "tensor                  shape      kinds\n",
        "embedding.token.weight  [37, 11]   param f32, exp_avg bf16, exp_avg_sq bf16\n",
        "final_norm.bias         [1]        param f32, exp_avg bf16, exp_avg_sq bf16\n",
        "  scaler = {\"good_steps\":3,\"scale\":65536.0}\n"}) {
    EXPECT_NE(table.find(line), std::string::npos) << line << table;
  }
  EXPECT_NE(table.find(built.manifest.save_uuid), std::string::npos);
}

TEST(Inspect, TheJsonSaysTheSameToPrograms) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const test::Built built =
      test::build_checkpoint(folder.path(), 1200, tensors, test::even_cut(tensors, 2));
  const Checkpoint checkpoint(posix_disk(), built.path);
  const auto json = nlohmann::json::parse(inspect_json(checkpoint, true));
  EXPECT_EQ(json["step"], 1200);
  EXPECT_EQ(json["num_shards"], 2);
  EXPECT_EQ(json["state_bytes"], 524 * 3 * 4);
  EXPECT_EQ(json["files"]["shard-00001-of-00002.h5"], built.manifest.shards[1].bytes);
  EXPECT_EQ(json["tensors"][2]["name"], "block.0.mlp.up.weight");
  EXPECT_EQ(json["tensors"][2]["shape"], (std::vector<int>{5, 7, 3}));
  EXPECT_EQ(json["tensors"][2]["digest"], tensor_digests(checkpoint)[2]);
  EXPECT_EQ(json["global"], *built.manifest.global);
  EXPECT_FALSE(
      nlohmann::json::parse(inspect_json(checkpoint, false))["tensors"][2].contains("digest"));
}

TEST(Inspect, TextFromAFileCantMoveTheTerminalsCursor) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const test::Built built =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 1));
  auto json = test::unframed(test::read_text(built.path + "/manifest.json"));
  json["global"]["\x1b[2Jkey"] = "\x1b]0;owned\a\n\u009b31m";
  test::write_text(built.path + "/manifest.json", test::framed(json));
  const Checkpoint checkpoint(posix_disk(), built.path);
  for (const std::string& text : {inspect_table(checkpoint), inspect_json(checkpoint, false)}) {
    for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
    EXPECT_NE(text.find("key"), std::string::npos);
  }
}

TEST(Digest, IsXxh3OfTheTensorsBytesWhoeverSavedIt) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors(DType::kBF16);
  std::vector<std::string> expected;
  for (const auto& tensor : tensors) {
    const std::string bytes = test::element_bytes(tensor, 0, tensor.numel(), 0);
    expected.push_back(fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size())));
  }
  int step = 0;
  for (const int world : {1, 2, 3, 4, 6, 8}) {
    EXPECT_EQ(digests(test::build_checkpoint(folder.path(), ++step, tensors,
                                             test::even_cut(tensors, world))
                          .path),
              expected);
    EXPECT_EQ(digests(test::build_checkpoint(folder.path(), ++step, tensors,
                                             test::random_cut(tensors, world, 9))
                          .path),
              expected);
  }
}

TEST(Digest, ChangesWithTheValuesAndRefusesDamage) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const auto cut = test::even_cut(tensors, 2);
  const std::string path = test::build_checkpoint(folder.path(), 1, tensors, cut, 1).path;
  const test::Built other = test::build_checkpoint(folder.path(), 2, tensors, cut, 2);
  const auto first = digests(path), second = digests(other.path);
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_NE(first[i], second[i]);
  const std::string shard = other.path + "/" + shard_name(1, 2);
  std::string bytes = test::read_text(shard);
  bytes[static_cast<std::size_t>(other.manifest.shards[1].datasets[2].offset)] ^= 64;
  test::write_text(shard, bytes);
  EXPECT_NE(test::error_text<DataError>([&] { digests(other.path); }).find(shard),
            std::string::npos);
}

}  // namespace
}  // namespace sherd::checkpoint
