// index.h5 read by libhdf5 and by h5py: whole tensors, bit for bit, wherever the cuts fell.
#include "checkpoint/store/hdf5_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "checkpoint/store/verify.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/hdf5_reading.h"
#include "tests/checkpoint/support/saved_checkpoint.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Hdf5Content;
using test::read_hdf5;
using test::sample_tensors;

std::string dataset_path(const sharding::StateTensor& tensor) {
  return "/tensors/" + tensor.name + "/" + tensor.kind;
}

void expect_whole_tensors(const std::string& path,
                          const std::vector<sharding::StateTensor>& tensors) {
  for (const sharding::StateTensor& tensor : tensors) {
    Hdf5Content content;
    ASSERT_TRUE(read_hdf5(path + "/index.h5", dataset_path(tensor), content)) << tensor.name;
    EXPECT_TRUE(content.is_virtual);
    EXPECT_EQ(std::vector<std::int64_t>(content.shape.begin(), content.shape.end()), tensor.shape);
    EXPECT_EQ(content.raw, test::element_bytes(tensor, 0, tensor.numel(), 0)) << tensor.name;
  }
}

TEST(Hdf5Index, PresentsEveryTensorWholeWhereverTheCutsFell) {
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    const auto tensors = sample_tensors(moments);
    for (const int world : {1, 2, 3, 8}) {
      for (const unsigned seed : {0u, 1u, 2u}) {
        const test::TempFolder folder;
        expect_whole_tensors(
            test::build_checkpoint(
                folder.path(), 1, tensors,
                seed == 0 ? test::even_cut(tensors, world) : test::random_cut(tensors, world, seed))
                .path,
            tensors);
        expect_whole_tensors(test::build_checkpoint(folder.path(), 2, tensors,
                                                    test::column_cut(tensors, world, seed))
                                 .path,
                             tensors);
      }
    }
  }
}

TEST(Hdf5Index, ReadsAfterTheCheckpointWasMoved) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::random_cut(tensors, 3, 4)).path;
  fs::create_directories(folder.file("far/away"));
  fs::rename(path, folder.file("far/away/best"));
  expect_whole_tensors(folder.file("far/away/best"), tensors);
}

TEST(Hdf5Index, AMissingShardReadsAsNaNAndNothingElseDoes) {
  const auto tensors = sample_tensors(DType::kBF16);
  const test::Cut cut = test::random_cut(tensors, 3, 4);
  const test::TempFolder folder;
  const std::string path = test::build_checkpoint(folder.path(), 1, tensors, cut).path;
  fs::remove(path + "/" + shard_name(1, 3));
  std::size_t expected = 0, found = 0;
  for (const test::Range& range : cut[1]) expected += static_cast<std::size_t>(range.count);
  for (const sharding::StateTensor& tensor : tensors) {
    Hdf5Content content;
    ASSERT_TRUE(read_hdf5(path + "/index.h5", dataset_path(tensor), content));
    for (const float value : content.values) found += std::isnan(value);
  }
  EXPECT_GT(expected, 0u);
  EXPECT_EQ(found, expected);
}

TEST(Hdf5Index, WhatWritersSaveIsGoodToTheLastByteAndReadsWhole) {
  const test::TempFolder folder;
  const auto tensors = test::small_tensors(4);
  const std::string path = test::save_known_state(folder.path(), 5, tensors, 3);
  EXPECT_EQ(verify(posix_disk(), path, VerifyDepth::kDeep).problems, std::vector<std::string>());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string expected;
    for (std::int64_t i = 0; i < tensors[t].numel(); ++i) {
      const std::uint32_t bits = test::known_bits(5, static_cast<int>(t), i, tensors[t].dtype);
      expected.append(reinterpret_cast<const char*>(&bits), size_of(tensors[t].dtype));
    }
    Hdf5Content content;
    ASSERT_TRUE(read_hdf5(path + "/index.h5", dataset_path(tensors[t]), content));
    EXPECT_EQ(content.raw, expected) << dataset_path(tensors[t]);
  }
}

TEST(Hdf5Index, TheSameManifestHasTheSameIndex) {
  const auto tensors = sample_tensors();
  const test::TempFolder folder;
  const Manifest manifest =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 3)).manifest;
  EXPECT_EQ(build_hdf5_index(manifest), build_hdf5_index(manifest));
}

TEST(Boxes, CoverAnyRangeInOrderWithFewBoxes) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int64_t> shape(1 + random() % 4);
    std::int64_t numel = 1;
    for (std::int64_t& dimension : shape) numel *= dimension = 1 + random() % 6;
    const std::int64_t first = static_cast<std::int64_t>(random()) % numel;
    const std::int64_t count = 1 + static_cast<std::int64_t>(random()) % (numel - first);
    std::vector<std::int64_t> elements;  // that the boxes hold, each box row-major
    const std::vector<Hyperslab> boxes = hyperslabs_of(shape, first, count);
    EXPECT_LE(boxes.size(), 2 * shape.size() - 1);
    for (const Hyperslab& box : boxes) {
      std::vector<std::int64_t> index = box.start;
      const std::size_t begin = elements.size();
      for (bool more = true; more;) {
        std::int64_t element = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + index[d];
        elements.push_back(element);
        std::size_t d = shape.size();
        while (d > 0 && ++index[d - 1] == box.start[d - 1] + box.count[d - 1]) {
          index[d - 1] = box.start[d - 1];
          --d;
        }
        more = d > 0;
      }
      EXPECT_EQ(elements[begin], box.first_element);
      EXPECT_EQ(elements.size() - begin, static_cast<std::size_t>(box.numel));
    }
    ASSERT_EQ(elements.size(), static_cast<std::size_t>(count));
    for (std::size_t k = 0; k < elements.size(); ++k) {
      ASSERT_EQ(elements[k], first + static_cast<std::int64_t>(k));
    }
  }
}

// The document's own text, so that what it tells people is what was run.
std::string recipe_of_the_document() {
  const std::string text = test::read_text(SHERD_SOURCE_DIR "/docs/checkpoint_format.md");
  const std::string begin = "```python\n";
  const std::size_t at = text.find(begin);
  SHERD_CHECK(at != std::string::npos, "docs/checkpoint_format.md has no recipe in Python");
  return text.substr(at + begin.size(), text.find("```", at + 3) - at - begin.size());
}

int run_in(const std::string& folder, const std::string& command) {
  return std::system(("cd '" + folder + "' && " + command).c_str());
}

// Debian's, whatever else is in the path.
constexpr const char* kPython = "/usr/bin/python3";

TEST(Hdf5Index, TheDocumentsRecipeReadsAMatrixWithH5py) {
  const test::TempFolder folder;
  folder.write("recipe.py", recipe_of_the_document());
  auto tensors = test::small_tensors(4);
  for (const DType params : {DType::kBF16, DType::kF32}) {
    for (auto& tensor : tensors) {
      if (tensor.kind == "param") tensor.dtype = params;
    }
    const std::string type(name_of(params));
    fs::create_directory(folder.file(type));
    const std::string path = test::save_known_state(folder.file(type), 5, tensors, 3);
    ASSERT_TRUE(verify(posix_disk(), path, VerifyDepth::kDeep).good());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].kind != "param") continue;
      ASSERT_EQ(run_in(folder.path(), fmt::format("{} recipe.py {}/step-0000000005 {} >/dev/null",
                                                  kPython, type, tensors[t].name)),
                0);
      std::string expected;
      for (std::int64_t i = 0; i < tensors[t].numel(); ++i) {
        std::uint32_t bits = test::known_bits(5, static_cast<int>(t), i, params);
        if (params == DType::kBF16) bits <<= 16;
        expected.append(reinterpret_cast<const char*>(&bits), 4);
      }
      EXPECT_EQ(folder.read(tensors[t].name + ".f32"), expected) << tensors[t].name;
    }
  }
  // And it says so where a shard is missing.
  fs::remove(folder.file("f32/step-0000000005/" + shard_name(1, 3)));
  EXPECT_NE(
      run_in(folder.path(),
             std::string(kPython) + " recipe.py f32/step-0000000005 embedding.weight 2>/dev/null"),
      0);
}

}  // namespace
}  // namespace sherd::checkpoint
