// Several ranks write one folder, each its range.
#include <xxhash.h>

#include <thread>

#include "core/error.h"
#include "engine/huggingface/stretch_writer.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

class ExportByRanks : public Folder {
 protected:
  void train_once(const std::string& name) {
    write_tokens();
    model_ = recipe(write_model(name));
    train(model_, "run", 3, 2);
  }

  huggingface::FolderToWrite request(const std::string& family, int num_ranks) const {
    RecipeRequest request;
    request.path = "r.yaml";
    request.text = model_;
    huggingface::FolderToWrite folder;
    folder.to = folder_.file("out");
    folder.shard_bytes = 30'000;
    folder.family = huggingface::find_family(family);
    folder.model = model_weights(training_options(resolve_recipe(request).values));
    folder.files["config.json"] = "{}";
    folder.num_ranks = num_ranks;
    return folder;
  }

  // Names and contents of all files.
  std::map<std::string, std::string> files_of(const std::string& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_.file(folder))) {
      const std::string name = entry.path().filename().string();
      files[name] = folder_.read(folder + "/" + name);
    }
    return files;
  }

  std::string model_;
};

TEST_F(ExportByRanks, TheFolderIsTheSameOnAnyNumberOfRanks) {
  train_once("llama_tied");
  for (const std::int64_t shard : {std::int64_t{10'000}, huggingface::kDefaultShardBytes}) {
    std::map<std::string, std::string> first;
    for (const std::int64_t ranks : {1, 2, 3, 5, 300}) {
      ExportRequest request{checkpoint("run"), folder_.file("out"), DType::kBF16, shard};
      request.ranks = ranks;
      export_checkpoint(request);
      const auto files = files_of("out");
      fs::remove_all(folder_.file("out"));
      if (first.empty()) first = files;
      EXPECT_TRUE(files == first) << ranks << " ranks";
    }
    EXPECT_GT(first.size(), shard == 10'000 ? 6u : 3u);
  }
  ExportRequest none{checkpoint("run"), folder_.file("out"), {}};
  none.ranks = 0;
  EXPECT_EQ(test::error_text<UsageError>([&] { export_checkpoint(none); }),
            "--ranks is 0; expected a whole number from 1 to 1024.");
}

TEST_F(ExportByRanks, EachWritesItsShareOnce) {
  train_once("gpt2");
  const checkpoint::Checkpoint saved(checkpoint::posix_disk(), checkpoint("run"));
  constexpr int kRanks = 3;
  std::map<std::thread::id, std::int64_t> written;
  std::map<std::string, std::map<std::int64_t, std::int64_t>> ranges;  // first and last byte
  std::int64_t all = 0;
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (!call.writes() || !call.path.ends_with(".safetensors")) return std::nullopt;
    const std::int64_t end = call.offset + std::ssize(call.bytes);
    EXPECT_TRUE(ranges[call.path].emplace(call.offset, end).second) << call.path << call.offset;
    if (call.offset == 0) return std::nullopt;  // a header
    written[std::this_thread::get_id()] += std::ssize(call.bytes);
    all += std::ssize(call.bytes);
    return std::nullopt;
  });
  const huggingface::FolderToWrite folder = request("gpt2", kRanks);
  huggingface::export_folder(disk, &saved, folder);
  std::int64_t elements = 0;
  for (const auto& parameter : folder.model.parameters) elements += parameter.numel();
  EXPECT_EQ(all, 4 * elements);
  EXPECT_GT(ranges.size(), 3u);
  for (const auto& [path, parts] : ranges) {  // no byte twice, none left out
    std::int64_t at = 0;
    for (const auto& [first, end] : parts) {
      EXPECT_EQ(first, at) << path;
      at = end;
    }
    const std::string name = path.substr(path.rfind('/') + 1);
    EXPECT_EQ(at, std::ssize(folder_.read("out/" + name)));
  }
  ASSERT_EQ(written.size(), static_cast<std::size_t>(kRanks));
  for (const auto& [thread, bytes] : written) {
    EXPECT_LE(std::abs(bytes - all / kRanks), huggingface::stretch_bytes(all) + 1);
  }
}

TEST_F(ExportByRanks, ChecksumsNextToTheFilesAreThoseOfItsBytes) {
  train_once("llama");
  ExportRequest request{checkpoint("run"), folder_.file("out"), {}, 20'000};
  request.ranks = 2;
  export_checkpoint(request);
  const json report = json::parse(folder_.read("out/sherd-export.json"));
  const auto stretch = report.at("stretch_bytes").get<std::size_t>();
  std::size_t num_cut = 0;
  for (const auto& [name, tensor] : report.at("tensors").items()) {
    const std::string file = folder_.read("out/" + tensor.at("file").get<std::string>());
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const json offsets = json::parse(file.substr(8, length)).at(name).at("data_offsets");
    const std::string bytes =
        file.substr(8 + length + offsets[0].get<std::size_t>(),
                    offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>());
    const json& sums = tensor.at("checksums");
    ASSERT_EQ(sums.size(), (bytes.size() + stretch - 1) / stretch) << name;
    num_cut += sums.size() > 1 ? 1 : 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::string part = bytes.substr(i * stretch, stretch);
      EXPECT_EQ(sums[i], fmt::format("{:016x}", XXH3_64bits(part.data(), part.size()))) << name;
    }
  }
  EXPECT_GT(num_cut, 0u);
}

TEST_F(ExportByRanks, ADiskThatFailsAtAnyCallOfAnyRankLeavesNoFolderBehind) {
  train_once("gpt2");
  const checkpoint::Checkpoint saved(checkpoint::posix_disk(), checkpoint("run"));
  const auto entries = [&] {
    return checkpoint::list_directory(checkpoint::posix_disk(), folder_.path());
  };
  const auto before = entries();
  for (const int num_ranks : {1, 3}) {
    const huggingface::FolderToWrite folder = request("gpt2", num_ranks);
    bool is_whole = false;
    for (int failing = 0; !is_whole; ++failing) {
      int calls = 0;
      test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
        if (call.name == "lstat" || calls++ != failing) return std::nullopt;
        return -ENOSPC;
      });
      const std::string text =
          test::error_text<DataError>([&] { huggingface::export_folder(disk, &saved, folder); });
      is_whole = calls <= failing;  // nothing has failed
      ASSERT_EQ(text.find("No space left") == std::string::npos, is_whole) << text;
      // Once it has its name, only making that durable can fail.
      const bool is_there = fs::exists(folder.to);
      if (is_there) {
        EXPECT_TRUE(fs::exists(folder.to + "/sherd-export.json"));
      }
      if (is_whole) {
        EXPECT_GT(failing, 20);
        EXPECT_TRUE(is_there);
        EXPECT_NE(test::error_text<UsageError>([&] {
                    huggingface::export_folder(checkpoint::posix_disk(), &saved, folder);
                  }).find("exists already"),
                  std::string::npos);
      }
      fs::remove_all(folder.to);
      EXPECT_EQ(entries(), before) << text;
    }
  }
}

TEST_F(ExportByRanks, CtrlCEndsItAndLeavesNothing) {
  train_once("gpt2");
  const checkpoint::Checkpoint saved(checkpoint::posix_disk(), checkpoint("run"));
  huggingface::FolderToWrite folder = request("gpt2", 3);
  int asked = 0;
  folder.check = [&] {
    if (++asked == 3) throw Interrupted("Ctrl-C");
  };
  const auto before = checkpoint::list_directory(checkpoint::posix_disk(), folder_.path());
  EXPECT_THROW(huggingface::export_folder(checkpoint::posix_disk(), &saved, folder), Interrupted);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(checkpoint::list_directory(checkpoint::posix_disk(), folder_.path()), before);
}

}  // namespace
}  // namespace sherd::engine
