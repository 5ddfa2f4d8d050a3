/// The file of a teacher's distributions for a run's samples: what `sherd score --save-top` writes
/// and a run with block `distillation` reads. A safetensors file:
///
///   ids                I32 [R, S, K]   of each token, the K tokens that the teacher finds likeliest
///                                      to follow, the likeliest first; of equal ones the lowest id
///   log_probabilities  F32 [R, S, K]   their natural logarithms, at temperature 1 and over the
///                                      whole vocabulary
///   row_hashes         U64 [R]         XXH3-64 of a row's ids, then of its log-probabilities
///   data               U64 [1]         hash_of_samples: which run's samples these are
///
/// R samples in the order of the run's steps (engine/data/batcher.h), of S tokens each. Tokens
/// without a target have zeros.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"
#include "engine/data/batcher.h"
#include "kernels/teacher.h"

namespace sherd::engine {

/// Which samples a batcher has, in which order.
std::uint64_t hash_of_samples(const data::Batcher& batches);

struct TeacherShape {
  std::int64_t rows = 0, seq_length = 0, top = 0;  ///< R, S, K
  std::uint64_t data = 0;

  std::int64_t of_row() const { return seq_length * top; }
};

/// Writes a file row by row; it gets its name when it is complete. Before, it is `path`.tmp, which
/// is removed if the writer ends early.
class TeacherWriter {
 public:
  /// Reserves the space. Errors   checkpoint::DiskError
  TeacherWriter(checkpoint::Disk& disk, const std::string& path, const TeacherShape& shape);
  /// [S, K] each. Any thread, any order, each row once.
  void write(std::int64_t row, std::span<const std::int32_t> ids,
             std::span<const float> log_probabilities);
  void finish();

 private:
  struct Unfinished {
    checkpoint::Disk& disk;
    std::string path;
    ~Unfinished();
  };

  Unfinished unfinished_;
  std::string path_;
  TeacherShape shape_;
  checkpoint::File file_;
  std::int64_t begin_ = 0;  // of the tensors
  std::vector<std::uint64_t> row_hashes_;
};

/// A file that a run reads from. Any thread may read.
class TeacherFile {
 public:
  /// `shape`: what the run needs. The file may have more rows, and more tokens of each.
  /// Errors   DataError: no such file; samples of another run, or too few; fewer tokens
  TeacherFile(checkpoint::Disk& disk, const std::string& path, const TeacherShape& shape,
              const kernels::TeacherForm& form, std::int64_t vocab_size);

  /// Rows [first, first + count) as the first rows of a batch: the likeliest TeacherForm::top
  /// tokens, and their probabilities at its temperature (kernels/teacher.h).
  /// Errors   DataError: a damaged row, or one that isn't in the file
  void fill(std::int64_t first, std::int64_t count, const data::Batch& batch) const;

  /// Of everything in it; never 0.
  std::uint64_t hash() const { return hash_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  kernels::TeacherForm form_;
  std::int64_t vocab_size_;
  TeacherShape shape_;  // of the file
  checkpoint::File file_;
  std::int64_t ids_begin_ = 0, log_probabilities_begin_ = 0;
  std::vector<std::uint64_t> row_hashes_;
  std::uint64_t hash_ = 0;
};

}  // namespace sherd::engine
