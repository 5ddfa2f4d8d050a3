// manifest.json: what is written comes back, and whatever contradicts itself is refused by name.
#include "checkpoint/format/manifest.h"

#include <gtest/gtest.h>

#include "checkpoint/format/strict_json.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using nlohmann::ordered_json;
using test::framed;
using test::unframed;

Manifest small_manifest(int world = 2) {
  static const test::TempFolder folder;
  static int next = 0;
  const auto tensors = test::sample_tensors();
  return test::build_checkpoint(folder.file(std::to_string(next++)), 12, tensors,
                                test::even_cut(tensors, world))
      .manifest;
}

std::string refusal(const std::string& text) {
  return test::error_text<DataError>([&] { parse_manifest(text, "m.json"); });
}

// The refusal of a manifest of which one value was changed, its checksum made right again.
std::string refusal_with(const std::string& pointer, const ordered_json& value) {
  ordered_json json = unframed(manifest_to_json(small_manifest()));
  json.at(ordered_json::json_pointer(pointer)) = value;
  return refusal(framed(json));
}

TEST(Manifest, ComesBackAsItWentOut) {
  const Manifest out = small_manifest(3);
  const Manifest in = parse_manifest(manifest_to_json(out), "m.json");
  EXPECT_EQ(in.save_uuid, out.save_uuid);
  EXPECT_EQ(in.step, 12);
  EXPECT_EQ(*in.global, *out.global);
  EXPECT_EQ(in.index_bytes, out.index_bytes);
  EXPECT_EQ(in.index_checksum, out.index_checksum);
  ASSERT_EQ(in.tensors.size(), 12u);
  for (std::size_t i = 0; i < in.tensors.size(); ++i) {
    EXPECT_EQ(in.tensors[i].name, out.tensors[i].name);
    EXPECT_EQ(in.tensors[i].kind, out.tensors[i].kind);
    EXPECT_EQ(in.tensors[i].shape, out.tensors[i].shape);
    EXPECT_EQ(in.tensors[i].dtype, out.tensors[i].dtype);
  }
  ASSERT_EQ(in.shards.size(), 3u);
  for (std::size_t s = 0; s < in.shards.size(); ++s) {
    EXPECT_EQ(in.shards[s].bytes, out.shards[s].bytes);
    EXPECT_EQ(in.shards[s].metadata_checksum, out.shards[s].metadata_checksum);
    ASSERT_EQ(in.shards[s].datasets.size(), out.shards[s].datasets.size());
    for (std::size_t d = 0; d < in.shards[s].datasets.size(); ++d) {
      EXPECT_EQ(in.shards[s].datasets[d].kind, out.shards[s].datasets[d].kind);
      EXPECT_EQ(in.shards[s].datasets[d].numel, out.shards[s].datasets[d].numel);
      EXPECT_EQ(in.shards[s].datasets[d].offset, out.shards[s].datasets[d].offset);
      EXPECT_EQ(in.shards[s].datasets[d].checksums, out.shards[s].datasets[d].checksums);
    }
    ASSERT_EQ(in.shards[s].pieces.size(), out.shards[s].pieces.size());
    for (std::size_t p = 0; p < in.shards[s].pieces.size(); ++p) {
      EXPECT_EQ(in.shards[s].pieces[p].tensor, out.shards[s].pieces[p].tensor);
      EXPECT_EQ(in.shards[s].pieces[p].first_element, out.shards[s].pieces[p].first_element);
      EXPECT_EQ(in.shards[s].pieces[p].count, out.shards[s].pieces[p].count);
      EXPECT_EQ(in.shards[s].pieces[p].position, out.shards[s].pieces[p].position);
    }
  }
}

TEST(Manifest, AShardsShareComesBackAsItWentOut) {
  const ShardInfo out = small_manifest().shards[1];
  const ShardInfo in = parse_shard(shard_to_json(out), "part.json");
  EXPECT_EQ(shard_to_json(in), shard_to_json(out));
  EXPECT_NE(test::error_text<DataError>([] {
              parse_shard("{}", "part.json");
            }).find("part.json: the outermost value lacks the key \"bytes\""),
            std::string::npos);
}

TEST(Manifest, GlobalNumbersComeBackToTheLastBit) {
  Manifest manifest = small_manifest();
  const nlohmann::json global = {{"third", 1.0 / 3},
                                 {"tiny", 4.9e-324},
                                 {"seed", UINT64_MAX},
                                 {"minus", INT64_MIN},
                                 {"text", "a\"\\\n\u00e9"}};
  manifest.global = std::make_shared<const nlohmann::json>(global);
  EXPECT_EQ(*parse_manifest(manifest_to_json(manifest), "m.json").global, global);
}

TEST(Manifest, TheChecksumIsXxh3OfEverythingBeforeItsOwnLine) {
  const std::string text = manifest_to_json(small_manifest());
  const std::size_t line = text.rfind("\n,\"checksum\":\"");
  EXPECT_EQ(text.substr(line),
            fmt::format("\n,\"checksum\":\"{:016x}\"}}\n", XXH3_64bits(text.data(), line)));
}

TEST(Manifest, EveryFlippedBitIsRefused) {
  std::string text = manifest_to_json(small_manifest());
  const int bits = static_cast<int>(text.size()) * 8;
  int refused = 0;
  for (int bit = 0; bit < bits; ++bit) {
    char& byte = text[static_cast<std::size_t>(bit / 8)];
    byte = static_cast<char>(byte ^ (1 << bit % 8));
    refused += refusal(text).starts_with("m.json: ");
    byte = static_cast<char>(byte ^ (1 << bit % 8));
  }
  EXPECT_EQ(refused, bits);
}

TEST(Manifest, EveryCutIsRefused) {
  const std::string text = manifest_to_json(small_manifest());
  for (std::size_t length = 0; length < text.size(); ++length) {
    ASSERT_TRUE(refusal(text.substr(0, length)).starts_with("m.json: ")) << length;
  }
  EXPECT_TRUE(refusal(text + "\n").starts_with("m.json: "));
}

TEST(Manifest, ANewerVersionIsNamedAsSuch) {
  EXPECT_EQ(
      refusal_with("/version", 4),
      "m.json: is of format version 4; this program reads versions 1 to 3. Use the newer program "
      "that wrote it.");
}

TEST(Manifest, AnotherProgramsJsonIsNoManifest) {
  EXPECT_NE(refusal("{\"weights\": []}").find("isn't a Sherd checkpoint's manifest"),
            std::string::npos);
}

struct Wrong {
  const char* pointer;
  ordered_json value;
  const char* message;
};

TEST(Manifest, AWrongValueIsRefusedByItsKey) {
  const auto huge = ordered_json::parse("9223372036854775808");      // 2^63
  const auto beyond = ordered_json::parse("100000000000000000000");  // more than 2^64: a double
  const std::vector<Wrong> cases = {
      {"/save_uuid", "../../../etc", "save_uuid is \"../../../etc\"; expected 32"},
      {"/step", -1, "step is -1; expected a whole number from 0"},
      {"/step", 1.0, "step is 1.0; expected a whole number"},
      {"/step", "1", "step is string; expected a whole number"},
      {"/step", huge, "step is 9223372036854775808; expected"},
      {"/finite", false, "finite is false"},
      {"/finite", 1, "finite is number; expected true or false"},
      {"/block_bytes", 512, "block_bytes is 512"},
      {"/global", ordered_json::array(), "global isn't an object"},
      {"/tensors", ordered_json::array(), "tensors has 0 entries"},
      {"/tensors/3/name", "../../x", "tensors[3].name is \"../../x\""},
      {"/tensors/3/name", "a/b", "tensors[3].name is \"a/b\""},
      {"/tensors/3/name", ".", "tensors[3].name is \".\""},
      {"/tensors/3/name", "a..b", "tensors[3].name is \"a..b\""},
      {"/tensors/3/name", "", "tensors[3].name is \"\""},
      {"/tensors/3/name", std::string(256, 'x'), "tensors[3].name is"},
      {"/tensors/3/name", "a\x1b[31mb", "tensors[3].name is \"a?[31mb\""},
      {"/tensors/3/name", std::string("a\0b", 3), "tensors[3].name is \"a?b\""},
      {"/tensors/3/kind", "Param", "tensors[3].kind is \"Param\""},
      {"/tensors/3/kind", "", "tensors[3].kind is \"\""},
      {"/tensors/3/dtype", "f16", "tensors[3].dtype is \"f16\"; types are f32 and bf16"},
      {"/tensors/3/shape", ordered_json::array(), "tensors[3].shape has 0 dimensions"},
      {"/tensors/3/shape", {1, 1, 1, 1, 1, 1, 1, 1, 1}, "tensors[3].shape has 9 dimensions"},
      {"/tensors/3/shape", {0}, "tensors[3].shape[0] is 0"},
      {"/tensors/3/shape", {-4}, "tensors[3].shape[0] is -4"},
      {"/tensors/3/shape", {1 << 30, 1 << 30, 1 << 30}, "tensors[3].shape has more elements"},
      {"/tensors/3/name", "block.0.norm1.weight", "block.0.norm1.weight/param is listed twice"},
      {"/shards", ordered_json::array(), "shards has 0 entries"},
      {"/shards/0/bytes", huge, "shards[0].bytes is 9223372036854775808"},
      {"/shards/0/bytes", beyond, "shards[0].bytes is 1e+20"},
      {"/shards/0/bytes", 4096, "of a file of 4096"},
      {"/shards/0/metadata_checksum", "12", "shards[0].metadata_checksum is \"12\"; expected 16"},
      {"/shards/0/metadata_checksum", "0123456789ABCDEF", "lower-case hex"},
      {"/shards/0/datasets/0/offset", 0, "shards[0].datasets[0].offset is 0"},
      {"/shards/0/datasets/0/offset", 4097, "begins at byte 4097, which isn't a multiple of 4096"},
      {"/shards/0/datasets/0/numel", std::int64_t{1} << 51, "datasets[0].checksums has 1 entries"},
      {"/shards/0/datasets/0/numel", std::int64_t{1} << 53,
       "datasets[0].numel is 9007199254740992"},
      {"/shards/0/datasets/0/checksums", ordered_json::array(), "checksums has 0 entries"},
      {"/shards/0/datasets/0/kind", "exp_avg", "dataset /exp_avg is listed twice"},
      {"/shards/0/datasets/0/dtype", "bf16", "is in dataset /param (bf16)"},
      {"/shards/0/pieces/0", {0, 0, 1}, "shards[0].pieces[0] isn't [tensor,"},
      {"/shards/0/pieces/0/0", 12, "piece 0 belongs to tensor 12 of 12"},
      {"/shards/0/pieces/0/0", -1, "shards[0].pieces[0][0] is -1"},
      {"/shards/0/pieces/0/1", 1, "elements [0, 1) of embedding.token.weight/param are in no"},
      {"/shards/0/pieces/0/1", std::int64_t{1} << 52, "which has 407"},
      {"/shards/0/pieces/0/2", 0, "shards[0].pieces[0][2] is 0"},
      {"/shards/0/pieces/0/2", 261, "piece 1 of embedding.token.weight/exp_avg (f32) is in"},
      {"/shards/0/pieces/0/2", 263, "piece 0 is at [0, +263) of dataset /param, which has 262"},
      {"/shards/0/pieces/0/3", 1, "piece 0 is at [1, "},
      {"/shards/1/pieces/0/1", 0, "of embedding.token.weight/param are in two pieces"},
      {"/index/bytes", 0, "index.bytes is 0"},
      {"/index/checksum", 5, "index.checksum is number; expected text"},
  };
  for (const Wrong& wrong : cases) {
    const std::string found = refusal_with(wrong.pointer, wrong.value);
    EXPECT_TRUE(found.starts_with("m.json: ")) << wrong.pointer << ": " << found;
    EXPECT_NE(found.find(wrong.message), std::string::npos) << wrong.pointer << ": " << found;
  }
}

TEST(Manifest, UnknownAndMissingKeysAreRefusedEverywhere) {
  const std::string text = manifest_to_json(small_manifest());
  for (const char* where : {"", "/tensors/0", "/shards/0", "/shards/0/datasets/0", "/index"}) {
    const ordered_json::json_pointer pointer{std::string(where)};
    ordered_json more = unframed(text);
    more.at(pointer)["path"] = "/etc/passwd";
    EXPECT_NE(refusal(framed(more)).find("has the unknown key \"path\""), std::string::npos);
    const ordered_json all = unframed(text);
    for (const auto& [key, value] : all.at(pointer).items()) {
      if (key == "format" || key == "version") continue;  // they are the text's beginning
      ordered_json less = unframed(text);
      less.at(pointer).erase(key);
      EXPECT_NE(refusal(framed(less)).find("lacks the key \"" + key + "\""), std::string::npos)
          << refusal(framed(less));
    }
  }
}

TEST(Manifest, AKeyThatStandsTwiceIsRefused) {
  ordered_json json = unframed(manifest_to_json(small_manifest()));
  const std::string text = framed(json, ",\"step\":7");
  EXPECT_EQ(refusal(text), "m.json: the key \"step\" appears twice in one object");
}

TEST(Manifest, DeepNestingIsRefused) {
  ordered_json json = unframed(manifest_to_json(small_manifest()));
  const std::string deep(100'000, '[');
  EXPECT_EQ(refusal(framed(json, ",\"x\":" + deep)), "m.json: JSON nested deeper than 32 levels");
}

TEST(Manifest, WhatIsntJsonIsRefusedWithoutQuotingIt) {
  for (const char* tail :
       {",\"x\":\x1b]0;owned\a", ",\"x\":\"\xff\xfe\"", ",\"x\":NaN", ",", "}"}) {
    ordered_json json = unframed(manifest_to_json(small_manifest()));
    const std::string found = refusal(framed(json, tail));
    EXPECT_TRUE(found.starts_with("m.json: isn't JSON from byte ")) << found;
    EXPECT_EQ(found.find('\x1b'), std::string::npos);
  }
}

// A sparse file of 4 TiB costs its maker nothing and its reader days.
TEST(Manifest, FilesLargerThanWhatTheyAreSaidToHoldAreRefused) {
  const std::int64_t huge = std::int64_t{4} << 40;
  EXPECT_NE(refusal_with("/shards/1/bytes", huge).find("shard-00001-of-00002.h5: 43980"),
            std::string::npos)
      << refusal_with("/shards/1/bytes", huge);
  EXPECT_NE(refusal_with("/index/bytes", huge).find("index.h5 has 4398046511104 bytes; at most"),
            std::string::npos);
}

// One tensor [3, 8] whose columns are in three bands, of which the second is in two pieces.
Manifest manifest_of_bands(std::vector<ShardPiece> pieces = {{0, 0, 6, 0, {0, 2}},
                                                             {0, 0, 4, 6, {2, 3}},
                                                             {0, 4, 5, 10, {2, 3}},
                                                             {0, 0, 9, 15, {5, 3}}}) {
  Manifest manifest = small_manifest(1);
  manifest.tensors = {{"down.weight", "param", {3, 8}, DType::kF32}};
  ShardInfo& shard = manifest.shards[0];
  shard.datasets.resize(1);
  shard.datasets[0].numel = 0;
  shard.datasets[0].checksums.resize(1);
  for (const ShardPiece& piece : pieces) shard.datasets[0].numel += piece.count;
  shard.pieces = std::move(pieces);
  return manifest;
}

TEST(ManifestOfBands, IsOfVersion2AndComesBackAsItWentOutAndOthersStayOfVersion1) {
  const std::string text = manifest_to_json(manifest_of_bands());
  EXPECT_TRUE(text.starts_with(R"({"format":"sherd-checkpoint","version":2,)"));
  EXPECT_NE(text.find("[[0,0,6,0,0,2],[0,0,4,6,2,3],[0,4,5,10,2,3],[0,0,9,15,5,3]]"),
            std::string::npos);
  EXPECT_EQ(manifest_to_json(parse_manifest(text, "m.json")), text);
  EXPECT_TRUE(manifest_to_json(small_manifest())
                  .starts_with(R"({"format":"sherd-checkpoint","version":1,)"));
}

TEST(ManifestOfBands, IsRefusedInVersion1) {
  ordered_json json = unframed(manifest_to_json(manifest_of_bands()));
  json["version"] = 1;
  EXPECT_NE(refusal(framed(json)).find("isn't [tensor, first element, count, position]"),
            std::string::npos);
}

// Codes of 8-bit moments.
TEST(ManifestOfBytes, IsOfVersion3AndComesBackAsItWentOut) {
  Manifest manifest = manifest_of_bands();
  manifest.tensors[0].dtype = manifest.shards[0].datasets[0].dtype = DType::kU8;
  const std::string text = manifest_to_json(manifest);
  EXPECT_TRUE(text.starts_with(R"({"format":"sherd-checkpoint","version":3,)"));
  EXPECT_EQ(manifest_to_json(parse_manifest(text, "m.json")), text);
  ordered_json json = unframed(text);
  json["version"] = 2;
  EXPECT_NE(refusal(framed(json)).find("is \"u8\"; types are f32 and bf16"), std::string::npos);
}

TEST(ManifestOfBands, IsRefusedWithHolesAndOverlapsAndColumnsThatThereAreNot) {
  const auto complaint = [](std::vector<ShardPiece> pieces) {
    return test::error_text<DataError>([&] { manifest_to_json(manifest_of_bands(pieces)); });
  };
  const auto contains = [&](std::vector<ShardPiece> pieces, const std::string& text) {
    const std::string found = complaint(std::move(pieces));
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  contains({{0, 0, 6, 0, {0, 2}}, {0, 0, 15, 6, {3, 5}}},
           "columns [2, 3) of down.weight/param are in no shard");
  contains({{0, 0, 12, 0, {0, 4}}, {0, 0, 15, 12, {3, 5}}},
           "columns [3, 4) of down.weight/param are in two pieces");
  contains({{0, 0, 12, 0, {0, 4}}, {0, 0, 24, 12, {}}},
           "columns [0, 8) of down.weight/param are in two pieces");
  contains({{0, 0, 12, 0, {0, 4}}}, "columns [4, 8) of down.weight/param are in no shard");
  contains({{0, 0, 12, 0, {0, 4}}, {0, 0, 11, 12, {4, 4}}},
           "elements [11, 12) of down.weight/param, columns [4, 8) are in no shard");
  contains({{0, 0, 12, 0, {0, 4}}, {0, 1, 11, 12, {4, 4}}},
           "elements [0, 1) of down.weight/param, columns [4, 8) are in no shard");
  contains({{0, 0, 12, 0, {0, 4}}, {0, 0, 15, 12, {4, 5}}},
           "columns [4, +5) of down.weight/param, which has 8");
  contains({{0, 0, 13, 0, {0, 4}}, {0, 0, 12, 13, {4, 4}}}, "which has 12");
}

}  // namespace
}  // namespace sherd::checkpoint
