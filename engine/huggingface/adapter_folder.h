/// An adapter folder as PEFT saves it: adapter_config.json and adapter_model.safetensors.
///
/// Read      LoRA and rsLoRA of any matrices, including the embedding and the head, in all or some
///           layers, each with its own rank and alpha; fully trained modules; biases.
/// Refused   by name: other kinds of adapters, DoRA, initialisations that change the base (PiSSA,
///           OLoRA, CorDA, LoftQ), biases of B, single rows of an embedding, alpha_pattern with
///           regular expressions, pickles.
/// The tensors determine which modules have adapters; target_modules, which may be a regular
/// expression, isn't read.
/// Errors    DataError naming the file and the key or tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/interchange/safetensors_folder.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";

/// Whether this folder looks like an adapter folder.
bool is_adapter_folder(checkpoint::Disk& disk, const std::string& folder);

/// The adapter matrices A and B of one matrix.
struct AdapterPair {
  std::string module;  ///< "model.layers.0.self_attn.q_proj", as in a text model
  std::string a,
      b;  ///< names in the file: [r, inputs], [outputs, r]; of an embedding [r, V], [D, r]
  bool is_embedding = false;
  std::int64_t rank = 0;
  double alpha = 0.0;
};

/// A tensor that replaces the model's.
struct WholeTensor {
  std::string name;     ///< "lm_head.weight", as in a text model
  std::string in_file;  ///< "base_model.model.lm_head.weight"
};

class AdapterFolder {
 public:
  AdapterFolder(checkpoint::Disk& disk, const std::string& folder);

  const std::string& path() const { return tensors_.path(); }
  /// base_model_name_or_path, unchanged; may be empty, or a name that isn't a local folder.
  const std::string& base() const { return base_; }
  bool rslora() const { return rslora_; }
  double dropout() const { return dropout_; }

  const std::vector<AdapterPair>& pairs() const { return pairs_; }
  const std::vector<WholeTensor>& whole_tensors() const { return whole_; }
  /// alpha / rank, or alpha / sqrt(rank).
  double scale_of(const AdapterPair& pair) const;

  const std::vector<std::int64_t>& shape_of(const std::string& in_file) const;
  std::vector<float> read(const std::string& in_file) const;

 private:
  struct Config;
  void read_config(const std::string& path);
  void sort_tensors(const Config& config);

  checkpoint::Disk& disk_;
  checkpoint::SafetensorsFolder tensors_;
  std::string base_;
  bool rslora_ = false;
  double dropout_ = 0.0;
  std::vector<AdapterPair> pairs_;
  std::vector<WholeTensor> whole_;
};

/// Rows of the vocabulary if the embedding or the head is fully trained; 0 if neither is.
std::int64_t vocabulary_rows(const AdapterFolder& adapter, const Family& family);

}  // namespace sherd::huggingface
