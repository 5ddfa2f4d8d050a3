/// Fills a rank's state from a Hugging Face folder. Of every tensor, it reads only the bytes that
/// the rank owns.
///
/// Opening compares the folder with the model: each tensor exists once, with the right shape, as
/// f32, bf16 or f16. The folder has no other tensors except buffers of old files. A tied model's
/// head may be stored in addition to the embedding; its bytes are then read too, and must be equal.
///
/// With an overlay (overlay.h), the adapter is merged into the model's weights.
///
/// Rows for tokens that the run has added are missing in the folder. They are the mean of the
/// existing rows: summed in f64 in order, and rounded once to f32. Each rank that owns a part of
/// them reads the tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/interchange/safetensors_folder.h"
#include "core/tensor.h"
#include "engine/huggingface/config.h"
#include "engine/huggingface/overlay.h"
#include "engine/huggingface/text_part.h"
#include "engine/huggingface/weight_map.h"
#include "sharding/state/state.h"

namespace sherd::huggingface {

class FolderWeights {
 public:
  /// Errors   DataError naming the first tensor that is missing, unexpected or different.
  FolderWeights(checkpoint::Disk& disk, const std::string& folder, const ModelWeights& model);
  FolderWeights(checkpoint::Disk& disk, const std::string& folder, const ModelWeights& model,
                const ModelConfig& config, std::shared_ptr<const Overlay> overlay = nullptr);

  const checkpoint::SafetensorsFolder& folder() const { return folder_; }
  const Family& family() const { return *family_; }

  struct Statistics {
    std::int64_t bytes_read = 0;  ///< bytes of tensors
  };
  /// `wanted`: any ranges of the model's parameters, as f32. `buffer`: u8, at least 4 MiB; no other
  /// memory of a tensor's size is used.
  /// Errors   DataError if bytes are missing or a value isn't finite.
  Statistics load(const sharding::State& wanted, Tensor buffer,
                  const sharding::CopyState& copy = {}) const;

 private:
  ModelWeights as_stored(ModelWeights model, const ModelConfig& config) const;
  void find_replaced(const ModelWeights& stored);
  bool is_replaced(int theirs) const { return replaced_[static_cast<std::size_t>(theirs)]; }
  void check_folder() const;
  /// Whether a tensor belongs to a layer that predicts further tokens, which aren't read.
  bool is_of_prediction(std::string_view name) const;
  void add_deltas(const std::string& ours, float* values, std::int64_t first,
                  std::int64_t count) const;

  checkpoint::Disk& disk_;
  checkpoint::SafetensorsFolder folder_;
  const Family* family_ = nullptr;
  TensorNames names_;
  CodeBlocks codes_;
  std::int64_t layers_ = 0, prediction_layers_ = 0;
  WeightMap map_;                           ///< with the folder's names
  int tied_head_ = -1;                      ///< index into map_.theirs: a copy of the embedding
  std::shared_ptr<const Overlay> overlay_;  ///< null: the folder's weights alone
  std::vector<const std::vector<float>*> replaced_;  ///< by tensor of theirs; null: not replaced
};

}  // namespace sherd::huggingface
