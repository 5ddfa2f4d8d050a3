/// Files of a model to be written as safetensors: which tensor goes where, before any byte is there.
///
/// Files are as huggingface/safetensors writes them (the order of tensors, the header's text and
/// padding, {"format": "pt"} as metadata, which old loaders insist on), so a model that is read and
/// written unchanged has the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace sherd::checkpoint {

struct TensorToWrite {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel() const;
};

struct SafetensorsPlan {
  struct File {
    std::string name;          ///< model.safetensors, or model-00001-of-00003.safetensors
    std::string header;        ///< the file up to its data
    std::vector<int> tensors;  ///< indices into the list given, in the order of their bytes
    std::vector<std::int64_t> offsets;  ///< of each, in the file
    std::int64_t bytes = 0;             ///< of the file
  };
  std::vector<File> files;
  std::string index;  ///< text of model.safetensors.index.json; "" for a single file
};

/// Tensors of one type, in the model's order; a file is full before `shard_bytes` of data, but holds
/// one tensor at least. `name` is that of the files: "model" as above.
SafetensorsPlan plan_safetensors(const std::vector<TensorToWrite>& tensors, DType dtype,
                                 std::int64_t shard_bytes, const std::string& name = "model");

}  // namespace sherd::checkpoint
