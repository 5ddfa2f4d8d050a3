// safetensors files: what is refused and what is taken, by the table of the format's own reader.
#include "checkpoint/interchange/safetensors.h"

#include <gtest/gtest.h>

#include <random>

#include "checkpoint/interchange/safetensors_folder.h"
#include "checkpoint/interchange/safetensors_layout.h"
#include "core/error.h"
#include "tests/checkpoint/support/allocation_meter.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

std::string length_of(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i, length >>= 8) bytes += static_cast<char>(length & 0xff);
  return bytes;
}

std::string file_of(const std::string& json, std::size_t data_bytes) {
  return length_of(json.size()) + json + std::string(data_bytes, '\x01');
}

const std::string kTwo =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}})";

class Safetensors : public testing::Test {
 protected:
  /// The error of reading such a file.
  std::string refusal(const std::string& bytes) {
    const std::string path = folder.write("x.safetensors", bytes);
    const std::string text =
        test::error_text<DataError>([&] { read_safetensors_header(posix_disk(), path); });
    if (text == "(no error)") return text;
    EXPECT_EQ(text.find(path), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text.substr(path.size() + 2);
  }
  std::string refusal(const std::string& json, std::size_t data_bytes) {
    return refusal(file_of(json, data_bytes));
  }

  test::TempFolder folder{test::memory_folder()};
};

// One tensor "t" with these texts in its entry.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                const std::string& more = "") {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         more + "}}";
}

TEST_F(Safetensors, FindsTensorsInAnyOrderOfKeys) {
  const std::string json =
      R"({"b":{"data_offsets":[8,12],"dtype":"BF16","shape":[2,1]},"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string path = folder.write("x.safetensors", file_of(json, 12));
  const SafetensorsHeader header = read_safetensors_header(posix_disk(), path);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype(), DType::kF32);
  EXPECT_EQ(header.tensors[1].begin, 8 + std::ssize(json) + 8);
  EXPECT_EQ(header.tensors[1].bytes, 4);
  EXPECT_EQ(header.tensors[1].shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(header.header_bytes, 8 + std::ssize(json));
}

TEST_F(Safetensors, TakesWhatTheFormatAllows) {
  const std::string empty_between =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"b":{"dtype":"F16","shape":[1],"data_offsets":[4,6]}})";
  const std::pair<std::string, std::int64_t> files[] = {
      {" \n\t" + kTwo + "  \n", 12},
      {one("\"F32\"", "[]", "[0,4]"), 4},
      {one("\"F32\"", "[0,4]", "[0,0]"), 0},
      {one("\"F32\"", "[1]", "[0,4]", R"(,"extra":{"deep":[1]})"), 4},
      {R"({"__metadata__":null})", 0},
      {"{}", 0},
      {R"({"":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 1},
      {empty_between, 6},
      {one("\"F4\"", "[3,2]", "[0,3]"), 3},
      {one("\"C64\"", "[1]", "[0,8]"), 8},
      {one("\"I64\"", "[1,1,1,1,1,1,1,1,1,1]", "[0,8]"), 8}};
  for (const auto& [json, bytes] : files) {
    EXPECT_EQ(refusal(json, static_cast<std::size_t>(bytes)), "(no error)") << json;
  }
}

// Quadratic time would be hours.
TEST_F(Safetensors, ReadsAndPlansAFewHundredThousandTensors) {
  constexpr int kTensors = 300'000;
  std::string json = "{";
  std::vector<TensorToWrite> tensors;
  for (int i = 0; i < kTensors; ++i) {
    json += fmt::format(R"({}"t{:06}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                        i > 0 ? "," : "", i, 4 * i, 4 * i + 4);
    tensors.push_back({fmt::format("t{:06}", i), {1}});
  }
  const SafetensorsHeader header = parse_safetensors_header(json + "}", 4 * kTensors, "x");
  ASSERT_EQ(header.tensors.size(), std::size_t{kTensors});
  EXPECT_EQ(header.tensors.back().name, "t299999");
  EXPECT_EQ(plan_safetensors(tensors, DType::kF32, 4 * (kTensors - 1)).files.size(), 2u);
}

TEST_F(Safetensors, RefusesFilesThatAreNone) {
  EXPECT_EQ(refusal(""), "has 0 bytes; a safetensors file has 8 at least");
  EXPECT_EQ(refusal("1234567"), "has 7 bytes; a safetensors file has 8 at least");
  EXPECT_EQ(refusal(length_of(100'000'001) + "{}"),
            "states a header of 100000001 bytes; at most 2 can be here");
  EXPECT_EQ(refusal(length_of(UINT64_MAX) + "{}"),
            "states a header of 18446744073709551615 bytes; at most 2 can be here");
  EXPECT_EQ(refusal(length_of(3) + "{}"),
            "states a header of 3 bytes; at most 2 can be here; was its download cut off?");
  for (const std::string& json :
       {std::string(""), std::string("{"), std::string("[]"), std::string("7"), std::string("{}x"),
        std::string("{}\0", 3), std::string("{\"\xff\":1}"),
        std::string(R"({"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
        std::string("\xef\xbb\xbf{}"), std::string("{'a':1}"), std::string("// x\n{}"),
        std::string(100, '[')}) {
    EXPECT_NE(refusal(json, 0), "(no error)") << json;
  }
}

TEST_F(Safetensors, KnowsAPointerOfGitLfs) {
  EXPECT_EQ(
      refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 129664\n"),
      "is a pointer of Git LFS in place of the file; run git lfs pull, or download the file.");
}

TEST_F(Safetensors, RefusesEntriesThatDontSayOneThing) {
  for (
      const std::string& json : {
          one("\"F31\"", "[1]", "[0,4]"),
          one("\"f32\"", "[1]", "[0,4]"),
          one("7", "[1]", "[0,4]"),
          one("\"F32\"", "[1]", "[4,0]"),
          one("\"F32\"", "[1]", "[0]"),
          one("\"F32\"", "[1]", "[0,2,4]"),
          one("\"F32\"", "[2]", "[0,4]"),
          one("\"F32\"", "[-1]", "[0,4]"),
          one("\"F32\"", "[1.0]", "[0,4]"),
          one("\"F32\"", "[1e0]", "[0,4]"),
          one("\"F32\"", "[1]", "[0,4.0]"),
          one("\"F32\"", "[1]", "[-4,0]"),
          one("\"F32\"", "1", "[0,4]"),
          one("\"F32\"", "[\"1\"]", "[0,4]"),
          one("\"F32\"", "null", "[0,4]"),
          one("\"F32\"", "[4294967296,4294967296,4294967296]", "[0,4]"),
          one("\"F32\"", "[4611686018427387904,4]", "[0,0]"),
          one("\"F32\"", "[18446744073709551616]", "[0,4]"),
          one("\"F4\"", "[7]", "[0,4]"),
          one("\"F32\"", "[1]", "[0,4]", R"(,"dtype":"F32")"),
          std::string(R"({"t":{"dtype":"F32","shape":[1]}})"),
          std::string(R"({"t":{"shape":[1],"data_offsets":[0,4]}})"),
          std::string(R"({"t":[]})"),
          std::string(R"({"t":null})"),
          std::string(R"({"__metadata__":{"a":1}})"),
          std::string(R"({"__metadata__":[]})"),
          std::string(R"({"__metadata__":{},"__metadata__":{}})"),
          // The format's reader takes the last of two; its README forbids them.
          std::string(
              R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
      }) {
    EXPECT_NE(refusal(json, 4), "(no error)") << json;
  }
}

TEST_F(Safetensors, RefusesHolesOverlapsAndWhatIsTooMuchOrTooLittle) {
  EXPECT_EQ(refusal(one("\"F32\"", "[1]", "[4,8]"), 8),
            "tensor \"t\" begins at byte 4 of the data; the one before ends at 0");
  EXPECT_EQ(refusal(one("\"F32\"", "[1]", "[0,4]"), 5),
            "its tensors have 4 bytes, but 5 follow the header");
  EXPECT_EQ(refusal(one("\"F32\"", "[1]", "[0,4]"), 3),
            "its tensors have 4 or more bytes, but 3 follow the header; was its download cut off?");
  EXPECT_EQ(refusal(one("\"F32\"", "[1]", "[0,4]"), 0),
            "its tensors have 4 or more bytes, but 0 follow the header; was its download cut off?");
  const auto two = [](int begin, int end) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[)" +
           std::to_string(end - begin) + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
           std::to_string(end) + "]}}";
  };
  EXPECT_EQ(refusal(two(4, 8), 8), "(no error)");
  EXPECT_EQ(refusal(two(3, 8), 8),
            "tensor \"b\" begins at byte 3 of the data; the one before ends at 4");
  EXPECT_EQ(refusal(two(5, 8), 8),
            "tensor \"b\" begins at byte 5 of the data; the one before ends at 4");
  EXPECT_EQ(refusal("{}", 1), "its tensors have 0 bytes, but 1 follow the header");
}

TEST_F(Safetensors, AllocateNothingByAStatedSize) {
  for (const std::string& bytes :
       {length_of(99'999'999) + "{}", length_of(std::uint64_t{1} << 62) + "{}",
        file_of(one("\"U8\"", "[4503599627370496]", "[0,4503599627370496]"), 4)}) {
    const std::string path = folder.write("x.safetensors", bytes);
    const test::AllocationMeter meter;
    EXPECT_THROW(read_safetensors_header(posix_disk(), path), DataError);
    EXPECT_LT(meter.largest(), 1u << 16);
  }
}

// Headers, indexes: every mutation is taken or refused with a sentence.
void mutate(int count) {
  std::mt19937 random(7);
  const std::string index =
      R"({"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})";
  const test::TempFolder folder(test::memory_folder());
  folder.write("model-00001-of-00002.safetensors", file_of(one("\"F32\"", "[2]", "[0,8]"), 8));
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string bytes = i % 4 == 3 ? index : file_of(kTwo, 12);
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int edit = 0; edit < edits; ++edit) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 9);
          break;
        case 2:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 30));
          break;
        default:
          bytes[at] = "{}[]\",:0123456789-e./\\"[random() % 22];
      }
      if (bytes.empty()) bytes = "x";
    }
    try {
      if (i % 4 == 3) {
        folder.write("model.safetensors.index.json", bytes);
        SafetensorsFolder(posix_disk(), folder.path());
      } else {
        read_safetensors_header(posix_disk(), folder.write("m.safetensors", bytes));
      }
    } catch (const DataError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(refused, count / 2);
}

TEST_F(Safetensors, MutationsAreTakenOrRefused) {
  mutate(2000);
}
TEST(SafetensorsSlow, AHundredThousandMutationsAreTakenOrRefused) {
  mutate(100'000);
}

class SafetensorsFolderTest : public testing::Test {
 protected:
  void write_shards(const std::string& map) {
    folder.write("model-1.safetensors",
                 file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    folder.write("model-2.safetensors",
                 file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    folder.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  }
  std::string refusal() const {
    return test::error_text<DataError>([&] { SafetensorsFolder(posix_disk(), folder.path()); });
  }

  test::TempFolder folder;
};

TEST_F(SafetensorsFolderTest, ReadsShardsByTheirIndex) {
  write_shards(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  const SafetensorsFolder shards(posix_disk(), folder.path() + "/");
  EXPECT_EQ(shards.places().size(), 2u);
  ASSERT_NE(shards.find("b"), nullptr);
  EXPECT_EQ(shards.find("c"), nullptr);
  // 0x01010101 as f32.
  float value = 0;
  std::uint16_t scratch = 0;
  SafetensorsReader reader(posix_disk(), shards);
  reader.read(shards.places().at("b"), 0, 1, &value, &scratch);
  EXPECT_EQ(value, std::bit_cast<float>(0x01010101));
  EXPECT_EQ(reader.bytes_read(), 4);
}

TEST_F(SafetensorsFolderTest, RefusesAnIndexThatLeadsOutOfTheFolder) {
  for (const char* name : {"../model-2.safetensors", "/etc/x.safetensors", "sub/x.safetensors",
                           ".x.safetensors", "model-2.bin", "", "..", "a\\\\b.safetensors"}) {
    write_shards(std::string(R"({"a":"model-1.safetensors","b":")") + name + "\"}");
    EXPECT_NE(refusal().find("expected a file of this folder"), std::string::npos) << name;
  }
}

TEST_F(SafetensorsFolderTest, RefusesAnIndexAndFilesThatDisagree) {
  write_shards(R"({"a":"model-1.safetensors","b":"model-3.safetensors"})");
  EXPECT_NE(refusal().find("model-3.safetensors: doesn't exist"), std::string::npos);
  write_shards(R"({"a":"model-1.safetensors"})");
  folder.write("model-1.safetensors",
               file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  EXPECT_NE(refusal().find("holds tensor \"b\", which model.safetensors.index.json doesn't list"),
            std::string::npos);
  write_shards(R"({"a":"model-2.safetensors","b":"model-1.safetensors"})");
  EXPECT_NE(refusal().find("holds tensor \"a\", which model.safetensors.index.json gives to"),
            std::string::npos);
  write_shards(
      R"({"a":"model-1.safetensors","b":"model-2.safetensors","c":"model-2.safetensors"})");
  EXPECT_NE(refusal().find("lacks tensor \"c\""), std::string::npos);
  write_shards(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  folder.write("model-2.safetensors",
               file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3));
  EXPECT_NE(refusal().find("was its download cut off?"), std::string::npos);
}

// As Hugging Face's cache has it: links to files elsewhere.
TEST_F(SafetensorsFolderTest, FollowsLinksToFilesAndNamesThoseThatLeadNowhere) {
  write_shards(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  const test::TempFolder blobs;
  for (const char* name :
       {"model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"}) {
    blobs.write(name, folder.read(name));
    std::filesystem::remove(folder.file(name));
    std::filesystem::create_symlink(blobs.file(name), folder.file(name));
  }
  EXPECT_EQ(SafetensorsFolder(posix_disk(), folder.path()).places().size(), 2u);
  std::filesystem::remove(blobs.file("model-2.safetensors"));
  EXPECT_EQ(refusal(), folder.file("model-2.safetensors") +
                           ": is a link to a file that isn't there; was the download cut off?");
}

TEST_F(SafetensorsFolderTest, SaysOfAFolderWhoseDownloadIsntFinishedThatItIsnt) {
  folder.write("model-00002-of-00002.safetensors", "x");
  EXPECT_EQ(refusal(), folder.path() +
                           ": holds model-00002-of-00002.safetensors, but neither "
                           "model.safetensors nor model.safetensors.index.json; was the download "
                           "cut off?");
  folder.write(".cache/huggingface/download/x.incomplete", "");
  EXPECT_EQ(refusal(), folder.path() + ": the download of this folder isn't finished (" +
                           folder.file(".cache/huggingface/download") + "/x.incomplete).");
  folder.write("model.safetensors.incomplete", "");
  EXPECT_EQ(refusal(), folder.file("model.safetensors.incomplete") +
                           ": the download of this folder isn't finished.");
}

TEST_F(SafetensorsFolderTest, NamesTheFormsThatArentRead) {
  EXPECT_NE(refusal().find("holds neither model.safetensors nor"), std::string::npos);
  folder.write("x.gguf", "GGUF");
  EXPECT_NE(refusal().find("GGUF isn't read"), std::string::npos);
  folder.write("pytorch_model.bin", "PK");
  EXPECT_NE(refusal().find("pytorch_model.bin: is a pickle"), std::string::npos);
}

TEST_F(SafetensorsFolderTest, RefusesWeightsThatArentFinite) {
  folder.write("model.safetensors", length_of(one("\"F16\"", "[2]", "[0,4]").size()) +
                                        one("\"F16\"", "[2]", "[0,4]") +
                                        std::string("\x00\x3c\x00\x7c", 4));
  const SafetensorsFolder files(posix_disk(), folder.path());
  SafetensorsReader reader(posix_disk(), files);
  float values[2];
  std::uint16_t scratch[2];
  reader.read(files.places().at("t"), 0, 1, values, scratch);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_NE(test::error_text<DataError>([&] {
              reader.read(files.places().at("t"), 0, 2, values, scratch);
            }).find("element 1 of tensor \"t\" is inf"),
            std::string::npos);
}

TEST(SafetensorsPlan, CutsFilesWhereTheyAreFull) {
  const std::vector<TensorToWrite> tensors = {
      {"z", {3}}, {"a", {2, 2}}, {"big", {100}}, {"c", {1}}};
  const SafetensorsPlan plan = plan_safetensors(tensors, DType::kF32, 28);
  ASSERT_EQ(plan.files.size(), 3u);
  EXPECT_EQ(plan.files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.files[0].tensors, (std::vector<int>{1, 0}));  // by name
  EXPECT_EQ(plan.files[1].tensors, std::vector<int>{2});
  EXPECT_EQ(plan.files[0].header.size() % 8, 0u);
  EXPECT_EQ(plan.files[0].bytes, std::ssize(plan.files[0].header) + 28);
  const SafetensorsHeader header =
      parse_safetensors_header(std::string_view(plan.files[0].header).substr(8), 28, "plan");
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_NE(plan.index.find(R"("big": "model-00002-of-00003.safetensors")"), std::string::npos);
  EXPECT_EQ(plan_safetensors(tensors, DType::kBF16, 1000).files[0].name, "model.safetensors");
}

}  // namespace
}  // namespace sherd::checkpoint
