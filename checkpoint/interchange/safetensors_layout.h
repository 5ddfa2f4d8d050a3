/// Plans a model's safetensors files: which tensor goes where, before any byte is written.
///
/// Files are as huggingface/safetensors writes them: the order of tensors, the header's text and
/// padding, and {"format": "pt"} as metadata, which old loaders require. So a model that is read
/// and written unchanged has the same bytes.
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
    std::vector<int> tensors;  ///< indices into the given list, in the order of their bytes
    std::vector<std::int64_t> offsets;  ///< of each tensor, in the file
    std::int64_t bytes = 0;             ///< of the file
  };
  std::vector<File> files;
  std::string index;  ///< text of model.safetensors.index.json; "" for a single file
};

/// Tensors of one type, in the model's order. A file holds at most `shard_bytes` of data, or a
/// single larger tensor. `name` is the files' base name: "model" as above.
SafetensorsPlan plan_safetensors(const std::vector<TensorToWrite>& tensors, DType dtype,
                                 std::int64_t shard_bytes, const std::string& name = "model");

}  // namespace sherd::checkpoint
