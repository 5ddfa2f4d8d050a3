/// Forms whole matrices on one tensor rank, for an equation that needs all of a matrix, and hands the parts
/// back. Ranks along the tensor axis have parts of each (ParameterCut).
///
///   form        all-gather of the parts; the owner puts them together
///   hand_back   the owner broadcasts the matrix; each rank takes its part
///
/// Both only move elements, so the owner computes from the same values as one rank would. Neighbours with
/// copies of a part send and receive the same elements. Cost per matrix of P elements per part on t ranks: (t - 1) P
/// sent by each, and (t - 1) times the whole by its owner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"
#include "sharding/mesh/traffic.h"

namespace sherd::optim {

/// A matrix and this rank's part of it: whole rows, or whole columns.
struct MatrixPart {
  std::int64_t rows = 0, columns = 0;
  std::int64_t whole_rows = 0, whole_columns = 0;

  std::int64_t numel() const { return rows * columns; }
  std::int64_t whole_numel() const { return whole_rows * whole_columns; }
  bool by_columns() const { return columns < whole_columns; }
};

/// The matrices that are stacked in a parameter, as far as this rank has them, in order.
std::vector<MatrixPart> matrix_parts(const ParameterSpec& parameter);

class MatrixParts {
 public:
  /// What is acquired for matrices of which these are parts on `degree` tensor ranks: nothing for one.
  static std::vector<BufferSpec> buffers(const std::vector<MatrixPart>& matrices, int degree);
  /// Adds the bytes that a rank sends to form one matrix and hand it back.
  static void add_traffic(const MatrixPart& matrix, int degree, bool is_owner,
                          sharding::Traffic& traffic);

  /// `matrices`: all that will be formed.
  MatrixParts(const sharding::Rank& rank, const std::vector<MatrixPart>& matrices);

  int degree() const { return degree_; }
  int tensor_rank() const { return tensor_rank_; }

  /// Collectives, on the reduce stream; the compute stream waits. `owner`: a tensor rank.
  void form(const std::string& label, const MatrixPart& matrix, const Tensor& part, int owner);
  void hand_back(const std::string& label, const MatrixPart& matrix, const Tensor& part, int owner);
  /// On the owner, between the two: row-major.
  Tensor whole(const MatrixPart& matrix) const {
    return whole_.tensor().part(0, matrix.whole_numel());
  }

 private:
  const sharding::Rank* rank_;
  int degree_, tensor_rank_;
  sharding::Communicator* ranks_ = nullptr;
  Buffer parts_;  // of all ranks, or a whole that comes back
  Buffer whole_;
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace sherd::optim
