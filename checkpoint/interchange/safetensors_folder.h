/// A folder of safetensors files as one set of tensors: model.safetensors alone, or the shards
/// listed by model.safetensors.index.json = {"metadata": ..., "weight_map": {tensor: file}}.
///
/// Opening reads only headers. An index is checked: files have plain names that end in .safetensors
/// (no path leads out of the folder), each file is present and complete, and map and headers agree
/// on every tensor.
/// Refused   a folder with only pytorch_model.bin or GGUF files. The former is a program, and only
///           other tools convert either of them to safetensors.
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
  /// Opens one file alone, whatever else is in the folder.
  SafetensorsFolder(Disk& disk, const std::string& folder, const std::string& file);

  struct Place {
    int file = 0;    ///< index into files()
    int tensor = 0;  ///< index in that file
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

/// Whether this folder may be meant as a model folder: it has config.json, or weight files in any
/// of the forms above, and isn't one of our checkpoints.
bool is_model_folder(Disk& disk, const std::string& folder);

/// Reads parts of tensors, with one file open at a time.
class SafetensorsReader {
 public:
  SafetensorsReader(Disk& disk, const SafetensorsFolder& folder) : disk_(disk), folder_(folder) {}

  /// Elements [first, first + count) of a tensor, as f32 (exact from bf16 and f16).
  /// `scratch`: space for 16-bit values before conversion, count elements of 2 bytes.
  /// Errors   DataError, also for a NaN or an infinity.
  void read(const SafetensorsFolder::Place& place, std::int64_t first, std::int64_t count,
            float* to, std::uint16_t* scratch);

  /// Bytes [first, first + count) of a tensor of any type.
  void read_bytes(const SafetensorsFolder::Place& place, std::int64_t first, std::int64_t count,
                  void* to);

  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  Disk& disk_;
  const SafetensorsFolder& folder_;
  File file_;
  int open_file_ = -1;
  std::int64_t bytes_read_ = 0;
};

}  // namespace sherd::checkpoint
