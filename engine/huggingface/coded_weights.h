/// Weights that a folder stores in 8 or 4 bits.
///
/// In DeepSeek-V3's form each matrix NAME has codes (e4m3), and a tensor NAME_scale_inv has a factor
/// for each block of, usually, 128 x 128 of them.
///
///   w[r, c] = value(code[r, c]) * scale[r / block rows, c / block columns]
///
/// The last blocks of rows and columns may be smaller. The product is formed in f32.
///
/// e4m3: a sign, 4 bits of exponent with bias 7, 3 bits of fraction; exponent 0 is subnormal, all
/// ones is NaN, and there are no infinities (Micikevicius et al., arXiv:2209.05433).
/// In gpt-oss's form (MXFP4) a tensor NAME [.., N] isn't there; NAME_blocks u8 [.., N / 32, 16] has
/// two codes (e2m1) in each byte, the first one in its low half, and NAME_scales u8 [.., N / 32] an
/// exponent for each 32 of them (Open Compute Project, Microscaling Formats 1.0):
///
///   w = value(code) * 2^(exponent - 127),    value: +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/interchange/safetensors_folder.h"

namespace sherd::huggingface {

/// How weights are coded, if they are.
struct CodeBlocks {
  std::int64_t rows = 0, columns = 0;  ///< of a block of e4m3 codes; 0: there are none
  bool mxfp4 = false;
  explicit operator bool() const { return rows > 0 || mxfp4; }
};

float value_of_e4m3(std::uint8_t code);

/// The coded tensors of a folder.
class CodedWeights {
 public:
  CodedWeights(checkpoint::Disk& disk, const checkpoint::SafetensorsFolder& folder,
               const CodeBlocks& blocks)
      : folder_(folder), blocks_(blocks), reader_(disk, folder) {}

  /// Whether the folder has the tensor of this name in 4 bits.
  bool has_blocks(const std::string& name) const;
  static std::vector<std::string> names_of_blocks(const std::string& name) {
    return {name + "_blocks", name + "_scales"};
  }
  /// Errors   DataError: blocks or scales have another shape or type than `shape` asks for.
  void check_blocks(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// Elements [first, first + count) of a tensor in 4 bits. `scratch`: count + 64 bytes.
  void read_blocks(const std::string& name, std::int64_t first, std::int64_t count, float* to,
                   std::uint8_t* scratch);

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
