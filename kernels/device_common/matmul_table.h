/// Which cuBLASLt algorithm multiplies which matrices, as measured on a GPU: a text file, written
/// by `./dev gpu-check --tune`. A matmul without a row gets the first answer of cuBLASLt's
/// heuristic.
///
///   [NVIDIA H100 80GB HBM3, cuBLASLt 13.1.0]
///   m=2048 n=8192 k=2048 a=t b=n in=bf16 ... -> id=66 tile=20 ... cluster=2  # 101.2 us, not 108.9
///
/// A row names a key (matmul_key.h) and what cuBLASLt calls an algorithm's configuration. It
/// belongs to the section of its GPU and cuBLASLt version; other GPU names and versions don't use
/// it. A key has one row in a section, so that equal keys keep bit-identical results: the file
/// decides, and it is the same in a whole run.
///
/// Errors  DataError, with file and line: unreadable lines, a repeated key, a configuration that
///         breaks a key's guarantees (sums that are split in a way that kernels/cuda/linear.cpp
///         doesn't allow).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/device_common/matmul_key.h"

namespace sherd::kernels::device_common {

/// Attributes of cublasLtMatmulAlgoConfigAttributes_t, in its order.
struct MatmulAlgorithm {
  std::int64_t id = 0, tile = 0, split_k = 1, reduction = 0, swizzle = 0, custom = 0, stages = 0,
               inner_shape = 0, cluster_shape = 0;

  auto operator<=>(const MatmulAlgorithm&) const = default;
};

/// The GPU and cuBLASLt version of a section.
struct MatmulPlace {
  std::string gpu;     ///< "NVIDIA H100 80GB HBM3"
  std::string cublas;  ///< "13.1.0"

  bool operator==(const MatmulPlace&) const = default;
  std::string text() const;  ///< "NVIDIA H100 80GB HBM3, cuBLASLt 13.1.0"
};

struct MatmulRow {
  MatmulKey key;
  MatmulAlgorithm algorithm;
  std::string remark{};  ///< after "#", for people
};

struct TimedAlgorithm {
  MatmulAlgorithm algorithm;
  double seconds = 0.0;
};
/// The fastest algorithm measured for `key`, if it takes less than `worth_it` of the time of the
/// first one, the heuristic's choice; else none.
std::vector<MatmulRow> row_worth_writing(const MatmulKey& key,
                                         const std::vector<TimedAlgorithm>& timed,
                                         double worth_it = 0.98);

/// Converts a key to text, "m=2048 n=8192 ...", and back. DataError if the text isn't a key.
std::string text_of(const MatmulKey& key);
MatmulKey matmul_key_of(const std::string& text);

/// How cuBLASLt may reduce sums that it splits along the depth: bits of cublasLtReductionScheme_t.
inline constexpr std::int64_t kReductionInF32 = 2;
/// The schemes that this key allows, as bits. 0: sums may not be split. -1: all schemes.
std::int64_t allowed_reductions(const MatmulKey& key);

class MatmulTable {
 public:
  MatmulTable() = default;
  /// `text` is the content of `file`.
  MatmulTable(const std::string& text, const std::string& file, const MatmulPlace& place);

  const MatmulAlgorithm* find(const MatmulKey& key) const;
  std::size_t num_rows() const { return rows_.size(); }
  /// "34 measured algorithms of matmul_algorithms.txt (12 of other GPUs or cuBLASLt versions
  /// ignored)"; "" without a file.
  std::string text() const;

 private:
  std::string file_;
  std::size_t num_elsewhere_ = 0;
  std::map<MatmulKey, MatmulAlgorithm> rows_;
};

/// `text` with the section of `place` replaced by `rows`.
std::string with_rows(const std::string& text, const MatmulPlace& place,
                      const std::vector<MatmulRow>& rows);

/// The table's file: SHERD_MATMUL_TABLE, which must exist, or is "" for no table; otherwise
/// matmul_algorithms.txt next to the program. "": there is none.
std::string matmul_table_file();
/// DataError if it can't be read.
std::string text_of_table(const std::string& file);

}  // namespace sherd::kernels::device_common
