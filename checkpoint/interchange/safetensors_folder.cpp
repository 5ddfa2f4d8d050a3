#include "checkpoint/interchange/safetensors_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/store/committed.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::int64_t kMaxIndexBytes = std::int64_t{1} << 28;

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

bool is_plain_name(std::string_view name) {
  return name.ends_with(".safetensors") && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// Files that a user may have there instead.
[[noreturn]] void refuse_other_forms(Disk& disk, const std::string& folder) {
  const std::vector<std::string> names = list_directory(disk, folder);
  for (const std::string& name : names) {
    if (name.ends_with(".incomplete") || name.ends_with(".part")) {
      throw DataError("{}/{}: the download of this folder isn't finished.", folder, name);
    }
  }
  const std::string downloads = folder + "/.cache/huggingface/download";
  if (exists(disk, downloads)) {
    for (const std::string& name : list_directory(disk, downloads)) {
      if (!name.ends_with(".incomplete")) continue;
      throw DataError("{}: the download of this folder isn't finished ({}/{}).", folder, downloads,
                      name);
    }
  }
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors")) {
      throw DataError("{}: holds {}, but neither {} nor {}; was the download cut off?", folder,
                      name, kSingle, kIndex);
    }
    if (name.starts_with("pytorch_model")) {
      throw DataError(
          "{}/{}: is a pickle, which is a program and not read; save the model as safetensors "
          "(transformers: save_pretrained).",
          folder, name);
    }
    if (name.ends_with(".gguf")) {
      throw DataError("{}/{}: GGUF isn't read; use the model's folder with safetensors.", folder,
                      name);
    }
  }
  throw DataError("{}: holds neither {} nor {}", folder, kSingle, kIndex);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(Disk& disk, const std::string& folder)
    : path_(without_trailing_slashes(folder)) {
  if (exists(disk, path_ + "/" + kSingle)) {
    add(read_safetensors_header(disk, path_ + "/" + kSingle));
  } else if (exists(disk, path_ + "/" + kIndex)) {
    read_index(disk, path_ + "/" + kIndex);
  } else {
    refuse_other_forms(disk, path_);
  }
}

SafetensorsFolder::SafetensorsFolder(Disk& disk, const std::string& folder, const std::string& file)
    : path_(without_trailing_slashes(folder)) {
  add(read_safetensors_header(disk, path_ + "/" + file));
}

void SafetensorsFolder::add(const SafetensorsHeader& header) {
  const int file = static_cast<int>(files_.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const auto [at, is_new] =
        places_.emplace(header.tensors[i].name, Place{file, static_cast<int>(i)});
    if (is_new) continue;
    throw DataError("{}: tensor \"{}\" is in {} too", header.path, printable(at->first),
                    files_[static_cast<std::size_t>(at->second.file)].path);
  }
  files_.push_back(header);
}

void SafetensorsFolder::read_index(Disk& disk, const std::string& index) {
  const nlohmann::json parsed = parse_strict(read_followed(disk, index, kMaxIndexBytes), index);
  const JsonNode root(parsed, index);
  const JsonNode map = root.member("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, value] : map.object().items()) {
    const std::string& name = map.member(tensor.c_str()).text();
    if (!is_plain_name(name)) {
      throw DataError(
          "{}: tensor \"{}\" is in \"{}\"; expected a file of this folder, NAME.safetensors", index,
          printable(tensor), printable(name));
    }
    names.insert(name);
  }
  for (const std::string& name : names) {
    const std::string path = path_ + "/" + name;
    if (!exists(disk, path)) {
      throw DataError("{}: doesn't exist, but {} names it; was the download interrupted?", path,
                      kIndex);
    }
    add(read_safetensors_header(disk, path));
  }
  for (const auto& [tensor, place] : places_) {
    const std::string& path = files_[static_cast<std::size_t>(place.file)].path;
    const auto stated = map.object().find(tensor);
    if (stated == map.object().end()) {
      throw DataError("{}: holds tensor \"{}\", which {} doesn't list", path, printable(tensor),
                      kIndex);
    }
    if (path_ + "/" + stated->get_ref<const std::string&>() == path) continue;
    throw DataError("{}: holds tensor \"{}\", which {} gives to {}", path, printable(tensor),
                    kIndex, stated->get_ref<const std::string&>());
  }
  for (const auto& [tensor, value] : map.object().items()) {
    if (places_.contains(tensor)) continue;
    throw DataError("{}/{}: lacks tensor \"{}\", which {} gives to it", path_,
                    value.get_ref<const std::string&>(), printable(tensor), kIndex);
  }
}

const SafetensorsTensor& SafetensorsFolder::tensor(const Place& place) const {
  return files_[static_cast<std::size_t>(place.file)]
      .tensors[static_cast<std::size_t>(place.tensor)];
}

const SafetensorsTensor* SafetensorsFolder::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &tensor(found->second);
}

bool is_model_folder(Disk& disk, const std::string& folder) {
  std::vector<std::string> names;
  try {
    names = list_directory(disk, folder);
  } catch (const DiskError&) {
    return false;  // whoever opens it says why
  }
  if (std::find(names.begin(), names.end(), kManifestName) != names.end()) return false;
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "config.json" || name.ends_with(".safetensors") || name.ends_with(".gguf") ||
           name.starts_with("pytorch_model");
  });
}

void SafetensorsReader::read(const SafetensorsFolder::Place& place, std::int64_t first,
                             std::int64_t count, float* to, std::uint16_t* scratch) {
  const SafetensorsHeader& header = folder_.files()[static_cast<std::size_t>(place.file)];
  const SafetensorsTensor& tensor = folder_.tensor(place);
  const DType dtype = tensor.dtype().value();
  const auto element_bytes = static_cast<std::int64_t>(size_of(dtype));
  SHERD_CHECK(first >= 0 && count >= 0 && (first + count) * element_bytes <= tensor.bytes,
              "elements [{}, +{}) of {}", first, count, tensor.name);
  void* raw = dtype == DType::kF32 ? static_cast<void*>(to) : scratch;
  read_bytes(place, first * element_bytes, count * element_bytes, raw);
  for (std::int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kBF16) to[i] = static_cast<float>(std::bit_cast<BFloat16>(scratch[i]));
    if (dtype == DType::kF16) to[i] = static_cast<float>(std::bit_cast<Float16>(scratch[i]));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isfinite(to[i])) continue;
    throw DataError("{}: element {} of tensor \"{}\" is {}; weights must be finite", header.path,
                    first + i, printable(tensor.name), to[i]);
  }
}

void SafetensorsReader::read_bytes(const SafetensorsFolder::Place& place, std::int64_t first,
                                   std::int64_t count, void* to) {
  const SafetensorsHeader& header = folder_.files()[static_cast<std::size_t>(place.file)];
  const SafetensorsTensor& tensor = folder_.tensor(place);
  SHERD_CHECK(first >= 0 && count >= 0 && first + count <= tensor.bytes, "bytes [{}, +{}) of {}",
              first, count, tensor.name);
  if (open_file_ != place.file) {
    file_ = open_followed(disk_, header.path);
    if (file_.status().bytes != header.file_bytes) {
      throw DataError("{}: has changed while it was read", header.path);
    }
    open_file_ = place.file;
  }
  file_.read_at(to, count, tensor.begin + first);
  bytes_read_ += count;
}

}  // namespace sherd::checkpoint
