// Loading: the same bits at every world, whichever world saved; differences and damage are named.
#include "checkpoint/reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "checkpoint/store/hdf5_index.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using test::Cut;
using test::Range;
using test::sample_tensors;
using test::WantedState;

using MakeCut =
    std::function<Cut(const std::vector<sharding::StateTensor>&, int world, unsigned seed)>;

constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8};

Tensor one_block() {
  static std::vector<char> memory(static_cast<std::size_t>(kBlockBytes));
  return {memory.data(), DType::kU8, kBlockBytes};
}

LoadStatistics load_from(const std::string& path, const sharding::State& wanted,
                         Match match = Match::kEverything) {
  return load(Checkpoint(posix_disk(), path), wanted, match, one_block());
}

TEST(Reader, EveryWorldLoadsTheBitsThatEveryOtherSaved) {
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    const test::TempFolder folder;
    const auto tensors = sample_tensors(moments);
    int step = 0;
    const auto even = [](const auto& all, int world, unsigned) {
      return test::even_cut(all, world);
    };
    for (const int saving : kWorlds) {
      for (const auto& [saved_in, loaded_in] : std::initializer_list<std::pair<MakeCut, MakeCut>>{
               {even, even},
               {test::random_cut, test::random_cut},
               {test::column_cut, even},
               {even, test::column_cut},
               {test::column_cut, test::column_cut}}) {
        const std::string path =
            test::build_checkpoint(folder.path(), ++step, tensors, saved_in(tensors, saving, 1))
                .path;
        for (const int loading : kWorlds) {
          for (const unsigned seed : {1u, 2u}) {
            for (const auto& ranges : loaded_in(tensors, loading, seed)) {
              const WantedState wanted(tensors, ranges);
              load_from(path, wanted.state);
              EXPECT_EQ(wanted.wrong_pieces(0), 0) << saving << " ranks to " << loading;
            }
          }
        }
      }
    }
  }
}

TEST(Reader, EveryWorldLoadsTheBitsThatWritersOfEveryOtherSaved) {
  const auto tensors = test::small_tensors(3);
  for (const int saving : kWorlds) {
    const test::TempFolder folder;
    test::SaveWorld world(folder.path(), saving, tensors);
    ASSERT_TRUE(world.save(5).committed);
    for (const int loading : kWorlds) {
      for (int rank = 0; rank < loading; ++rank) {
        const test::KnownState expected(tensors, 5, rank, loading);
        const test::KnownState loaded(tensors, 6, rank, loading);
        load_from(folder.path() + "/step-0000000005", loaded.state());
        for (std::size_t p = 0; p < loaded.state().pieces.size(); ++p) {
          const Tensor found = loaded.state().pieces[p].data;
          EXPECT_EQ(std::memcmp(found.data, expected.state().pieces[p].data.data,
                                static_cast<std::size_t>(found.bytes())),
                    0)
              << saving << " ranks to " << loading;
        }
      }
    }
  }
}

TEST(Reader, WantedPiecesMayOverlapAndComeInAnyOrder) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::random_cut(tensors, 3, 7)).path;
  const WantedState wanted(tensors,
                           {{0, 100, 200}, {0, 0, 407}, {2, 104, 1}, {0, 299, 2}, {11, 0, 1}});
  load_from(path, wanted.state);
  EXPECT_EQ(wanted.wrong_pieces(0), 0);
}

// Tensors of several blocks, cut so that blocks begin and end inside of pieces.
std::vector<sharding::StateTensor> large_tensors() {
  return {{"first", "param", {1000, 1501}, DType::kF32},
          {"second", "param", {700, 1000}, DType::kF32},
          {"third", "exp_avg", {1700, 1301}, DType::kBF16}};
}

std::int64_t num_blocks(const Manifest& manifest) {
  std::int64_t blocks = 0;
  for (const ShardInfo& shard : manifest.shards) {
    for (const ShardDataset& dataset : shard.datasets) blocks += std::ssize(dataset.checksums);
  }
  return blocks;
}

TEST(Reader, ReadsEachBlockOnceWhateverOverlaps) {
  const test::TempFolder folder;
  const auto tensors = large_tensors();
  const test::Built built =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 2));
  ASSERT_EQ(num_blocks(built.manifest), 6);
  std::vector<std::string> reads;
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (call.name == "pread" && call.path != kManifestName) {
      reads.push_back(fmt::format("{} {}", call.path, call.offset));
    }
    return std::nullopt;
  });
  std::vector<Range> ranges = test::whole(tensors);
  const std::vector<Range> twice = test::even_cut(tensors, 5)[2];
  ranges.insert(ranges.end(), twice.begin(), twice.end());
  const WantedState wanted(tensors, ranges);
  const LoadStatistics statistics =
      load(Checkpoint(disk, built.path), wanted.state, Match::kEverything, one_block());
  EXPECT_EQ(wanted.wrong_pieces(0), 0);
  EXPECT_EQ(statistics.blocks_read, 6);
  std::sort(reads.begin(), reads.end());
  EXPECT_EQ(std::unique(reads.begin(), reads.end()), reads.end()) << "a block was read twice";
  EXPECT_EQ(reads.size(), 6u);
}

TEST(Reader, ReadsOnlyBlocksThatHoldWantedElements) {
  const test::TempFolder folder;
  const auto tensors = large_tensors();
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 2)).path;
  const WantedState wanted(tensors, {{1, 350'000, 1}});
  EXPECT_EQ(load_from(path, wanted.state).blocks_read, 1);
  EXPECT_EQ(wanted.wrong_pieces(0), 0);
}

TEST(Reader, ABadBlockIsNamedWithItsBytesAndTensorsAndNeverCopied) {
  const test::TempFolder folder;
  const auto tensors = large_tensors();
  const test::Built built =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 1));
  const std::int64_t offset = built.manifest.shards[0].datasets[0].offset;
  const std::string path = built.path + "/shard-00000-of-00001.h5";
  std::string bytes = test::read_text(path);
  // The second block of /param: elements 1048576 to 2097152 of first (1501000) and second.
  bytes[static_cast<std::size_t>(offset + kBlockBytes + 5)] ^= 16;
  test::write_text(path, bytes);
  const WantedState wanted(tensors, test::whole(tensors));
  const std::string found =
      test::error_text<DataError>([&] { load_from(built.path, wanted.state); });
  EXPECT_TRUE(found.starts_with(fmt::format("{}: bytes [{}, {}) are damaged", path,
                                            offset + kBlockBytes, offset + 2 * kBlockBytes)))
      << found;
  EXPECT_NE(found.find("they hold first/param[1048576, 1501000), second/param[0, 596152)"),
            std::string::npos)
      << found;
  const auto good = static_cast<std::size_t>(kBlockBytes);
  EXPECT_EQ(wanted.memory[0].substr(0, good),
            test::element_bytes(tensors[0], 0, kBlockBytes / 4, 0));
  EXPECT_EQ(wanted.memory[0].substr(good), std::string(wanted.memory[0].size() - good, '\x5a'));
  EXPECT_EQ(wanted.memory[1], std::string(wanted.memory[1].size(), '\x5a'));
}

TEST(Reader, AReadThatFailsIsNamedAndAnInterruptedOneIsRepeated) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 2)).path;
  const WantedState wanted(tensors, test::whole(tensors));
  const auto load_answering = [&](int answer) {
    int reads = 0;
    test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
      if (call.name != "pread" || ++reads % 2 == 0) return std::nullopt;
      return answer;
    });
    load(Checkpoint(disk, path), wanted.state, Match::kEverything, one_block());
  };
  load_answering(-EINTR);
  EXPECT_EQ(wanted.wrong_pieces(0), 0);
  EXPECT_NE(test::error_text<DataError>([&] { load_answering(-EIO); }).find("(EIO)"),
            std::string::npos);
}

TEST(Reader, WeightsAloneLoadFromACheckpointWithMoments) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 2)).path;
  std::vector<sharding::StateTensor> weights = tensors;
  std::erase_if(weights, [](const auto& tensor) { return tensor.kind != "param"; });
  const WantedState wanted(weights, test::whole(weights));
  load_from(path, wanted.state, Match::kListedKinds);
  EXPECT_EQ(wanted.wrong_pieces(0), 0);
  EXPECT_NE(test::error_text<DataError>([&] {
              load_from(path, wanted.state);
            }).find("holds exp_avg of embedding.token.weight, which this run has for no tensor"),
            std::string::npos);
}

TEST(Reader, TheFirstDifferenceIsNamed) {
  const test::TempFolder folder;
  const auto tensors = sample_tensors();
  const std::string path =
      test::build_checkpoint(folder.path(), 1, tensors, test::even_cut(tensors, 2)).path;
  const auto refusal = [&](const auto& change, Match match = Match::kListedKinds) {
    std::vector<sharding::StateTensor> others = tensors;
    change(others);
    const sharding::State wanted{others, {}};
    return test::error_text<DataError>([&] { load_from(path, wanted, match); });
  };
  EXPECT_EQ(refusal([](auto& t) {
              t[2].shape = {5, 21};
            }),
            path + ": block.0.mlp.up.weight (param) is [5, 7, 3] there and [5, 21] in this run");
  EXPECT_EQ(refusal([](auto& t) { t[5].dtype = DType::kBF16; }),
            path + ": exp_avg of block.0.norm1.weight is f32 there and bf16 in this run");
  EXPECT_EQ(refusal([](auto& t) {
              t.push_back({"head.weight", "param", {4}, DType::kF32});
            }),
            path + ": holds no param of head.weight, which this run's model has");
  EXPECT_EQ(refusal([](auto& t) { t.erase(t.begin() + 1); }),
            path + ": holds param of block.0.norm1.weight, which this run's model lacks");
  EXPECT_EQ(refusal([](auto& t) { t[4].kind = "momentum"; }),
            path +
                ": holds no momentum of any tensor; this run needs embedding.token.weight's. Is "
                "the optimizer different?");
  EXPECT_EQ(refusal([](auto& t) { std::reverse(t.begin(), t.end()); }, Match::kEverything),
            "(no error)");
}

}  // namespace
}  // namespace sherd::checkpoint
