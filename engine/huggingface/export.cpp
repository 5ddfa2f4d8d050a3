#include "engine/huggingface/export.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "core/thread.h"
#include "engine/huggingface/checkpoint_elements.h"
#include "engine/huggingface/model_files.h"
#include "engine/huggingface/stretch_writer.h"

namespace sherd::huggingface {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Disk;
using checkpoint::File;
using checkpoint::SafetensorsPlan;

std::string hex(std::uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

std::uint64_t checksum_of(const std::string& text) {
  return XXH3_64bits(text.data(), text.size());
}

// What the disk gives back must be what was written.
void read_back(Disk& disk, const std::string& path, std::int64_t offset, std::int64_t length,
               std::uint64_t checksum) {
  const File file(disk, path, O_RDONLY | O_NOFOLLOW);
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read_at(text.data(), length, offset);
  if (checksum_of(text) != checksum) {
    throw DataError("{}: bytes {} to {} aren't what was written", path, offset, offset + length);
  }
}

/// The files of weights, and the ranks that write them.
class WeightFiles {
 public:
  WeightFiles(Disk& disk, const Checkpoint* checkpoint, const FolderToWrite& folder,
              const std::string& path)
      : disk_(disk),
        checkpoint_(checkpoint),
        folder_(folder),
        path_(path),
        map_(folder.map ? *folder.map : weight_map(*folder.family, folder.model, true)) {
    std::vector<checkpoint::TensorToWrite> tensors;
    for (const NamedShape& theirs : map_.theirs) tensors.push_back({theirs.name, theirs.shape});
    plan_ = checkpoint::plan_safetensors(tensors, folder.dtype, folder.shard_bytes,
                                         folder.weights_name);
    stretches_ = stretches_of(plan_, map_.theirs, folder.dtype);
    checksums_.resize(stretches_.size());
  }

  const SafetensorsPlan& plan() const { return plan_; }

  void write() {
    for (const SafetensorsPlan::File& planned : plan_.files) {
      File file(disk_, path_of(planned), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
      file.write_at(planned.header.data(), std::ssize(planned.header), 0);
      file.close();
    }
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(folder_.num_ranks));
    const auto run = [&](int rank) {
      try {
        write_range(rank);
      } catch (const AnotherRankFailed&) {
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
        failed_ = true;
      }
    };
    {
      std::vector<std::jthread> others;
      try {
        for (int rank = 1; rank < folder_.num_ranks; ++rank) others.emplace_back(run, rank);
      } catch (const std::system_error& refused) {
        failed_ = true;
        throw_thread_refused("for a rank of an export", refused);
      }
      run(0);
    }
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    for (const SafetensorsPlan::File& planned : plan_.files) {
      File file(disk_, path_of(planned), O_WRONLY | O_NOFOLLOW);
      file.sync();
      file.close();
    }
    if (folder_.read_back) read_all_back();
  }

  void report(nlohmann::ordered_json& report) const {
    report["stretch_bytes"] = stretch_bytes(num_bytes());
    report["tensors"] = nlohmann::ordered_json::object();
    auto& tensors = report["tensors"].get_ref<nlohmann::ordered_json::object_t&>();
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      const Stretch& stretch = stretches_[i];
      // Those of a tensor follow one another. tensors[name] would look through all that are there.
      if (i == 0 || stretch.tensor != stretches_[i - 1].tensor) {
        tensors.emplace_back(map_.theirs[static_cast<std::size_t>(stretch.tensor)].name,
                             nlohmann::ordered_json{{"file", file_of(stretch).name}});
      }
      tensors.back().second["checksums"].push_back(hex(checksums_[i]));
    }
    for (const SafetensorsPlan::File& planned : plan_.files) {
      report["headers"][planned.name] = {{"bytes", planned.header.size()},
                                         {"checksum", hex(checksum_of(planned.header))}};
    }
  }

 private:
  struct AnotherRankFailed {};

  void write_range(int rank) {
    std::optional<StretchWriter> writer;  // a rank that has nothing to write needs no memory
    File file;
    int open = -1;
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      const Stretch& stretch = stretches_[i];
      if (rank_of(stretch, num_bytes(), folder_.num_ranks) != rank) continue;
      if (!writer) writer.emplace(map_, folder_.dtype, reader());
      if (open != stretch.file) {
        if (file) file.close();
        file = File(disk_, path_of(file_of(stretch)), O_WRONLY | O_NOFOLLOW);
        open = stretch.file;
      }
      checksums_[i] = writer->write(stretch, file, [this, rank] {
        if (failed_) throw AnotherRankFailed();
        if (rank == 0 && folder_.check) folder_.check();
      });
    }
    if (file) file.close();
  }

  ReadElements reader() const {
    if (folder_.make_reader) return folder_.make_reader();
    return elements_of_checkpoint(*checkpoint_, map_.ours, folder_.num_ranks);
  }

  void read_all_back() const {
    for (const SafetensorsPlan::File& planned : plan_.files) {
      read_back(disk_, path_of(planned), 0, std::ssize(planned.header),
                checksum_of(planned.header));
    }
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      read_back(disk_, path_of(file_of(stretches_[i])), stretches_[i].offset,
                bytes_of(stretches_[i]), checksums_[i]);
    }
  }

  std::int64_t bytes_of(const Stretch& stretch) const {
    return stretch.count * static_cast<std::int64_t>(size_of(folder_.dtype));
  }
  std::int64_t num_bytes() const {
    return stretches_.empty() ? 0 : stretches_.back().bytes_before + bytes_of(stretches_.back());
  }
  const SafetensorsPlan::File& file_of(const Stretch& stretch) const {
    return plan_.files[static_cast<std::size_t>(stretch.file)];
  }
  std::string path_of(const SafetensorsPlan::File& file) const { return path_ + "/" + file.name; }

  Disk& disk_;
  const Checkpoint* checkpoint_;
  const FolderToWrite& folder_;
  std::string path_;
  WeightMap map_;
  SafetensorsPlan plan_;
  std::vector<Stretch> stretches_;
  std::vector<std::uint64_t> checksums_;  // by stretch; each written by one rank
  std::atomic<bool> failed_{false};
};

/// Everything inside the temporary folder.
ExportResult write_all(Disk& disk, const Checkpoint* checkpoint, const FolderToWrite& folder,
                       const std::string& temporary) {
  WeightFiles weights(disk, checkpoint, folder, temporary);
  weights.write();
  nlohmann::ordered_json report;
  if (checkpoint == nullptr) {
    report["from"] = folder.from;
  } else {
    report = {{"checkpoint", checkpoint->path()},
              {"step", checkpoint->manifest().step},
              {"save_uuid", checkpoint->manifest().save_uuid}};
  }
  report["dtype"] = name_of(folder.dtype);
  report["checksum"] = "XXH3-64";
  weights.report(report);
  const SafetensorsPlan& plan = weights.plan();
  ExportResult result;
  result.num_files = std::ssize(plan.files);
  for (const SafetensorsPlan::File& planned : plan.files) {
    result.num_tensors += std::ssize(planned.tensors);
    result.bytes += planned.bytes;
  }
  std::map<std::string, std::string> files = folder.files;
  if (!plan.index.empty()) files[folder.weights_name + ".safetensors.index.json"] = plan.index;
  for (const auto& [name, text] : files) {
    write_model_file(disk, temporary, name, text);
    report["files"][name] = {{"bytes", text.size()}, {"checksum", hex(checksum_of(text))}};
  }
  checkpoint::write_new_file(disk, temporary + "/" + kExportName, report.dump(1) + "\n");
  return result;
}

}  // namespace

ExportResult export_folder(Disk& disk, const Checkpoint* checkpoint, const FolderToWrite& given) {
  FolderToWrite folder = given;
  while (folder.to.size() > 1 && folder.to.back() == '/') folder.to.pop_back();
  SHERD_CHECK(checkpoint != nullptr || folder.make_reader, "an export of nothing");
  const auto refuse_existing = [&folder] {
    throw UsageError("{}: exists already; name another folder or remove it", folder.to);
  };
  if (checkpoint::exists(disk, folder.to)) refuse_existing();
  const std::string temporary = fmt::format("{}.tmp-{:08x}", folder.to, std::random_device()());
  checkpoint::make_directory(disk, temporary);
  ExportResult result;
  try {
    result = write_all(disk, checkpoint, folder, temporary);
    checkpoint::sync_directory(disk, temporary);
    if (!checkpoint::rename_new(disk, temporary, folder.to)) refuse_existing();
  } catch (...) {
    try {
      checkpoint::remove_tree(disk, temporary);
    } catch (const DataError&) {  // what went wrong first is what should be heard
    }
    throw;
  }
  checkpoint::sync_directory(disk, checkpoint::folder_of(folder.to));
  return result;
}

}  // namespace sherd::huggingface
