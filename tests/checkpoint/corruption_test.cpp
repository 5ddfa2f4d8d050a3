// Damage of every kind to a small checkpoint: each is refused with the file named, or does provably
// no harm. "Refused" is what a deep verify says; a load must refuse or give the right bits.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "checkpoint/reader.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/hdf5_index.h"
#include "checkpoint/store/verify.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/frozen_disk.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using test::FrozenDisk;

constexpr std::int64_t kStep = 3;
constexpr std::uint64_t kSeed = 21;

// Two shards, two kinds, every kind of piece; 40 KiB in all.
std::vector<sharding::StateTensor> few_tensors() {
  return {{"a.weight", "param", {9, 5}, DType::kF32},
          {"b.bias", "param", {6}, DType::kF32},
          {"a.weight", "exp_avg", {9, 5}, DType::kBF16},
          {"b.bias", "exp_avg", {6}, DType::kBF16}};
}

test::Built build(const std::string& folder, std::uint64_t seed = kSeed) {
  const auto tensors = few_tensors();
  return test::build_checkpoint(folder, kStep, tensors, test::even_cut(tensors, 2), seed);
}

struct Count {
  int refused = 0, harmless = 0, wrong = 0;
  std::string first_wrong;

  void operator+=(const Count& other) {
    refused += other.refused;
    harmless += other.harmless;
    wrong += other.wrong;
    if (first_wrong.empty()) first_wrong = other.first_wrong;
  }
};

// Looks at a damaged checkpoint in memory, over and over.
class Examiner {
 public:
  explicit Examiner(const std::string& path)
      : disk(path),
        path_(path),
        opened_(disk, path),
        memory_(static_cast<std::size_t>(kBlockBytes)),
        wanted_(few_tensors(), test::whole(few_tensors())) {}

  FrozenDisk disk;

  /// `damaged`: the file that a refusal must name. A load must refuse it, too, or do it right.
  void examine(const std::string& damaged, const std::string& how, Count& count) {
    count_one(verify(disk, path_, VerifyDepth::kDeep), damaged, how, count,
              [&] { return Checkpoint(disk, path_); });
  }
  /// The same where neither the manifest nor a size has changed, so that opening it again would
  /// tell nothing new. Several times as fast.
  void examine_bytes(const std::string& damaged, const std::string& how, Count& count) {
    count_one(verify(opened_, VerifyDepth::kDeep), damaged, how, count,
              [&]() -> const Checkpoint& { return opened_; });
  }

 private:
  template <class Open>
  void count_one(const VerifyReport& report, const std::string& damaged, const std::string& how,
                 Count& count, Open open) {
    const bool named = std::any_of(
        report.problems.begin(), report.problems.end(),
        [&](const std::string& problem) { return problem.find(damaged) != std::string::npos; });
    const bool loads_right = loaded_right(open);
    if (named && loads_right) {
      ++count.refused;
    } else if (report.good() && loads_right) {
      ++count.harmless;
    } else if (count.wrong++ == 0) {
      count.first_wrong = how + (report.good() ? " went unnoticed" : ": " + report.problems[0]) +
                          (loads_right ? "" : ", and loads wrong bits");
    }
  }

  template <class Open>
  bool loaded_right(Open open) {
    for (std::string& piece : wanted_.memory) std::fill(piece.begin(), piece.end(), '\x5a');
    try {
      load(open(), wanted_.state, Match::kEverything, {memory_.data(), DType::kU8, kBlockBytes});
    } catch (const DataError&) {
      return true;
    }
    return wanted_.wrong_pieces(kSeed) == 0;
  }

  std::string path_;
  Checkpoint opened_;
  std::vector<char> memory_;
  test::WantedState wanted_;
};

// Under the address sanitizer each look costs a hundred times as much: every 37th bit, which is
// every place within a byte.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kStride = 37;
#else
constexpr std::size_t kStride = 1;
#endif

// Every bit of every file, two threads.
Count flip_bits(const std::string& path) {
  Count total;
  std::mutex mutex;
  const auto work = [&](std::size_t begin) {
    Examiner examiner(path);
    Count count;
    for (auto& [name, content] : examiner.disk.files) {
      for (std::size_t bit = begin * kStride; bit < content.size() * 8; bit += 2 * kStride) {
        const char flip = static_cast<char>(1 << bit % 8);
        content[bit / 8] = static_cast<char>(content[bit / 8] ^ flip);
        const std::string how = fmt::format("{}: bit {}", name, bit);
        if (name == kManifestName) {
          examiner.examine(name, how, count);
        } else {
          examiner.examine_bytes(name, how, count);
        }
        content[bit / 8] = static_cast<char>(content[bit / 8] ^ flip);
      }
    }
    const std::lock_guard lock(mutex);
    total += count;
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  return total;
}

void expect_every_bit_refused(const std::string& path) {
  std::size_t bytes = 0, flips = 0;
  for (const auto& [name, content] : FrozenDisk(path).files) {
    bytes += content.size();
    flips += (content.size() * 8 + kStride - 1) / kStride;
  }
  EXPECT_LE(bytes, 64u << 10);
  const Count count = flip_bits(path);
  EXPECT_EQ(count.wrong, 0) << count.first_wrong;
  EXPECT_EQ(count.harmless, 0);
  EXPECT_EQ(static_cast<std::size_t>(count.refused), flips);
}

TEST(Corruption, EveryFlippedBitIsRefusedWithItsFileNamed) {
  const test::TempFolder folder;
  expect_every_bit_refused(build(folder.path()).path);
}

TEST(CorruptionSlow, EveryFlippedBitOfWhatWritersSavedIsRefused) {
  const test::TempFolder folder;
  test::SaveWorld world(folder.path(), 2, few_tensors());
  ASSERT_TRUE(world.save(kStep).committed);
  const std::string path = folder.file(step_directory_name(kStep));
  FrozenDisk disk(path);
  const Checkpoint opened(disk, path);
  ASSERT_TRUE(verify(opened, VerifyDepth::kDeep).good());
  std::size_t flips = 0, refused = 0;
  for (auto& [name, content] : disk.files) {
    if (name == kManifestName) continue;
    for (std::size_t bit = 0; bit < content.size() * 8; ++bit, ++flips) {
      const char flip = static_cast<char>(1 << bit % 8);
      content[bit / 8] = static_cast<char>(content[bit / 8] ^ flip);
      const VerifyReport report = verify(opened, VerifyDepth::kDeep);
      refused += !report.good() && report.problems[0].find(name) != std::string::npos;
      content[bit / 8] = static_cast<char>(content[bit / 8] ^ flip);
    }
  }
  EXPECT_EQ(refused, flips);
}

TEST(Corruption, FilesOfAnyOtherLengthAreRefused) {
  const test::TempFolder folder;
  Examiner examiner(build(folder.path()).path);
  std::mt19937 random(5);
  Count count;
  int cases = 0;
  for (auto& [name, content] : examiner.disk.files) {
    const std::string whole = content;
    std::vector<std::size_t> lengths = {0, 1, whole.size() - 1, whole.size() + 1, 2 * whole.size()};
    for (std::size_t edge = 512; edge < whole.size() + 8192; edge += 512) lengths.push_back(edge);
    for (int i = 0; i < 1000; ++i) lengths.push_back(random() % whole.size());
    for (const std::size_t length : lengths) {
      if (length == whole.size()) continue;
      content = whole;
      content.resize(length);
      examiner.examine(name, fmt::format("{} with {} bytes", name, length), count);
      ++cases;
    }
    content = whole;
  }
  EXPECT_EQ(count.wrong, 0) << count.first_wrong;
  EXPECT_EQ(count.refused, cases);
}

TEST(Corruption, RunsOfBytesThatAreZeroedOrScrambledAreRefused) {
  const test::TempFolder folder;
  Examiner examiner(build(folder.path()).path);
  std::mt19937 random(6);
  Count count;
  int cases = 0;
  for (auto& [name, content] : examiner.disk.files) {
    const std::string whole = content;
    for (int i = 0; i < 500; ++i) {
      const std::size_t begin = random() % whole.size();
      const std::size_t end =
          begin + 1 + random() % std::min<std::size_t>(whole.size() - begin, 999);
      for (std::size_t at = begin; at < end; ++at) {
        content[at] = i % 2 ? '\0' : static_cast<char>(random());
      }
      if (content != whole) {  // zeros may have stood there
        examiner.examine(name, fmt::format("{}: bytes [{}, {})", name, begin, end), count);
        ++cases;
      }
      content = whole;
    }
  }
  EXPECT_EQ(count.wrong, 0) << count.first_wrong;
  EXPECT_EQ(count.refused, cases);
  EXPECT_GT(cases, 1000);
}

TEST(Corruption, SwappedRenamedDuplicatedAndForeignFilesAreRefusedOrHarmless) {
  const test::TempFolder folder;
  const test::TempFolder other_folder;
  const std::string path = build(folder.path()).path;
  // The same step and shapes, other values: sizes are equal, only checksums and uuid differ.
  const FrozenDisk other(build(other_folder.path(), kSeed + 1).path);
  const FrozenDisk good(path);
  Examiner examiner(path);
  auto& files = examiner.disk.files;
  Count count;
  int refused = 0;
  for (const auto& [name, content] : good.files) {
    files.erase(name);
    examiner.examine(name, name + " missing", count);
    ++refused;
    files[name] = other.files.at(name);
    if (name == "manifest.json") {
      // Another save's manifest doesn't fit these shards: they are what is named.
      examiner.examine("shard-00000-of-00002.h5", "another save's " + name, count);
    } else {
      examiner.examine(name, "another save's " + name, count);
    }
    ++refused;
    for (const auto& [second, second_content] : good.files) {
      if (second == name) continue;
      files = good.files;
      std::swap(files[name], files[second]);
      // Both are wrong; the one that is looked at first is named.
      const auto first = [&](const std::string& prefix) {
        return name.starts_with(prefix) || second.starts_with(prefix);
      };
      const std::string named = first("manifest") ? "manifest.json" : "shard-0000";
      examiner.examine(named, name + " and " + second + " swapped", count);
      ++refused;
      files = good.files;
      files[second] = files[name];
      examiner.examine(second, second + " replaced by " + name, count);
      ++refused;
    }
    files = good.files;
    files.erase(name);
    files["shard-00002-of-00003.h5"] = content;
    examiner.examine(name, name + " renamed", count);
    ++refused;
    files = good.files;
  }
  EXPECT_EQ(count.wrong, 0) << count.first_wrong;
  EXPECT_EQ(count.harmless, 0);
  EXPECT_EQ(count.refused, refused);
  for (const auto& [name, content] : good.files) {
    files["copy-of-" + name] = content;
    examiner.examine("", name + " duplicated", count);
  }
  EXPECT_EQ(count.wrong, 0) << count.first_wrong;
  EXPECT_EQ(count.harmless, 4) << "a copy next to it is never opened";
}

TEST(Corruption, AShallowVerifySeesSizesButNotBits) {
  const test::TempFolder folder;
  Examiner examiner(build(folder.path()).path);
  const std::string& path = folder.file(step_directory_name(kStep));
  std::string& shard = examiner.disk.files["shard-00001-of-00002.h5"];
  shard.back() ^= 1;
  EXPECT_TRUE(verify(examiner.disk, path, VerifyDepth::kShallow).good());
  EXPECT_FALSE(verify(examiner.disk, path, VerifyDepth::kDeep).good());
  shard.pop_back();
  EXPECT_FALSE(verify(examiner.disk, path, VerifyDepth::kShallow).good());
}

TEST(Corruption, ADeepVerifyReportsEveryBadBlockAndCountsWhatItRead) {
  const test::TempFolder folder;
  const test::Built built = build(folder.path());
  Examiner examiner(built.path);
  const VerifyReport good = verify(examiner.disk, built.path, VerifyDepth::kDeep);
  EXPECT_TRUE(good.good());
  EXPECT_EQ(good.num_files, 4);
  std::int64_t bytes = 0;
  for (const auto& [name, content] : examiner.disk.files) {
    if (name != "manifest.json") bytes += std::ssize(content);
  }
  EXPECT_EQ(good.bytes_checked, bytes);
  for (int shard = 0; shard < 2; ++shard) {
    std::string& content = examiner.disk.files[shard_name(shard, 2)];
    for (const ShardDataset& dataset :
         built.manifest.shards[static_cast<std::size_t>(shard)].datasets) {
      content[static_cast<std::size_t>(dataset.offset)] ^= 1;
    }
    content[9] ^= 1;
  }
  examiner.disk.files["index.h5"][100] ^= 1;
  EXPECT_EQ(verify(examiner.disk, built.path, VerifyDepth::kDeep).problems.size(), 7u);
}

}  // namespace
}  // namespace sherd::checkpoint
