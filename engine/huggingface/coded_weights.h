/// Weights that a folder stores in 8 bits: DeepSeek-V3's form, in which each matrix NAME has codes
/// (e4m3) and a tensor NAME_scale_inv with a factor for each block of, usually, 128 x 128 of them.
///
///   w[r, c] = value(code[r, c]) * scale[r / block rows, c / block columns]
///
/// The last blocks of rows and columns may be smaller. The product is formed in f32.
///
/// e4m3: a sign, 4 bits of exponent with bias 7, 3 bits of fraction; exponent 0 is subnormal, all
/// ones is NaN, and there are no infinities (Micikevicius et al., arXiv:2209.05433).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/interchange/safetensors_folder.h"

namespace sherd::huggingface {

/// A block's size; 0 rows: weights aren't coded.
struct CodeBlocks {
  std::int64_t rows = 0, columns = 0;
  explicit operator bool() const { return rows > 0; }
};

float value_of_e4m3(std::uint8_t code);

/// The coded tensors of a folder.
class CodedWeights {
 public:
  CodedWeights(checkpoint::Disk& disk, const checkpoint::SafetensorsFolder& folder,
               const CodeBlocks& blocks)
      : folder_(folder), blocks_(blocks), reader_(disk, folder) {}

  static std::string scale_of(const std::string& name) { return name + "_scale_inv"; }
  /// Whether the tensor has codes.
  bool has(const checkpoint::SafetensorsTensor& tensor) const;
  /// Errors   DataError: the scales are missing, or have another shape or type.
  void check(const checkpoint::SafetensorsTensor& tensor) const;
  /// Elements [first, first + count). `scratch`: count bytes.
  /// Errors   DataError for a NaN or an infinity.
  void read(const std::string& name, std::int64_t first, std::int64_t count, float* to,
            std::uint8_t* scratch);
  std::int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  std::vector<std::int64_t> scale_shape(const checkpoint::SafetensorsTensor& tensor) const;
  const std::vector<float>& scales_of(const std::string& name);

  const checkpoint::SafetensorsFolder& folder_;
  CodeBlocks blocks_;
  checkpoint::SafetensorsReader reader_;
  std::string scaled_;  ///< the tensor whose scales are in memory
  std::vector<float> scales_;
};

}  // namespace sherd::huggingface
