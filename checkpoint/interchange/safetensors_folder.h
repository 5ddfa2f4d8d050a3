/// A folder of safetensors files as one set of tensors: model.safetensors alone, or shards listed by
/// model.safetensors.index.json = {"metadata": ..., "weight_map": {tensor: file}}.
///
/// Opening reads headers only. Of an index: files have plain names that end in .safetensors (no path
/// leads out of the folder), each is there and whole, and map and headers say the same of every
/// tensor.
/// Refused   a folder with pytorch_model.bin or GGUF files alone: the former is a program, and of
///           both only other tools make safetensors.
/// Errors    DataError naming the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/interchange/safetensors.h"

namespace sherd::checkpoint {

class SafetensorsFolder {
 public:
  SafetensorsFolder(Disk& disk, const std::string& folder);
  /// Of one file alone, whatever else is there.
  SafetensorsFolder(Disk& disk, const std::string& folder, const std::string& file);

  struct Place {
    int file = 0;    ///< index into files()
    int tensor = 0;  ///< of that file
  };

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsHeader>& files() const { return files_; }
  const std::map<std::string, Place>& places() const { return places_; }
  const SafetensorsTensor& tensor(const Place& place) const;
  const SafetensorsTensor* find(const std::string& name) const;

 private:
  void add(const SafetensorsHeader& header);
  void read_index(Disk& disk, const std::string& index);

  std::string path_;
  std::vector<SafetensorsHeader> files_;
  std::map<std::string, Place> places_;
};

/// Whether this folder may be meant as a model's: it has config.json, or files of weights in
/// any of the forms above, and isn't a checkpoint of ours.
bool is_model_folder(Disk& disk, const std::string& folder);

/// Reads parts of tensors, with one file open at a time.
class SafetensorsReader {
 public:
  SafetensorsReader(Disk& disk, const SafetensorsFolder& folder) : disk_(disk), folder_(folder) {}

  /// Elements [first, first + count) of a tensor, as f32 (exact from bf16 and f16).
  /// `scratch`: where the 16-bit forms pass through, count elements of 2 bytes.
  /// Errors   DataError, also for a NaN or an infinity.
  void read(const SafetensorsFolder::Place& place, std::int64_t first, std::int64_t count,
            float* to, std::uint16_t* scratch);

  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  Disk& disk_;
  const SafetensorsFolder& folder_;
  File file_;
  int open_file_ = -1;
  std::int64_t bytes_read_ = 0;
};

}  // namespace sherd::checkpoint
