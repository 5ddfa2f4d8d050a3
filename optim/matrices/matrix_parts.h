/// Forms whole matrices on one tensor rank, for an operation that needs a whole matrix, and hands
/// the parts back. Each rank along the tensor axis has a part of every matrix (ParameterCut).
///
///   form        all-gather of the parts; the owner assembles them
///   hand_back   the owner broadcasts the matrix; each rank takes its part
///   broadcast   the owner broadcasts something else that it has made of the matrix
///
/// Both only move elements, so the owner computes from the same values as a single rank would.
/// Neighbours with copies of a part send and receive the same elements. Cost per matrix of P
/// elements per part on t ranks: each rank sends (t - 1) P, and the owner also sends (t - 1) times
/// the whole.
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

/// The matrices stacked in a parameter, or this rank's parts of them, in order.
std::vector<MatrixPart> matrix_parts(const ParameterSpec& parameter);

/// The matrices stacked in the whole parameter, and the number of the rank's first among them:
/// expert ranks have some of them.
std::vector<MatrixPart> whole_matrices(const ParameterSpec& parameter);
int first_matrix(const ParameterSpec& parameter);

class MatrixParts {
 public:
  /// Buffers for whole matrices whose parts are on `degree` tensor ranks; none for one rank.
  static std::vector<BufferSpec> buffers(const std::vector<MatrixPart>& matrices, int degree);
  /// Adds the bytes that a rank sends to form one matrix, and to broadcast `numel` results.
  static void add_traffic(const MatrixPart& matrix, std::int64_t numel, int degree, bool is_owner,
                          sharding::Traffic& traffic);

  /// `matrices`: all matrices that will be formed.
  MatrixParts(const sharding::Rank& rank, const std::vector<MatrixPart>& matrices);

  int degree() const { return degree_; }
  int tensor_rank() const { return tensor_rank_; }

  /// Collectives, on the reduce stream; the compute stream waits. `owner`: a tensor rank.
  void form(const std::string& label, const MatrixPart& matrix, const Tensor& part, int owner);
  void hand_back(const std::string& label, const MatrixPart& matrix, const Tensor& part, int owner);
  /// Broadcasts what tensor rank `owner` has computed from a whole matrix.
  void broadcast(const std::string& label, const Tensor& result, int owner);
  /// The first row and column of this rank's part in the whole matrix.
  std::int64_t first_row(const MatrixPart& matrix) const;
  std::int64_t first_column(const MatrixPart& matrix) const;
  /// The whole matrix, row-major; on the owner, between `form` and `hand_back`.
  Tensor whole(const MatrixPart& matrix) const {
    return whole_.tensor().part(0, matrix.whole_numel());
  }

 private:
  const sharding::Rank* rank_;
  int degree_, tensor_rank_;
  sharding::Communicator* ranks_ = nullptr;
  Buffer parts_;  // of all ranks, or a whole matrix that is handed back
  Buffer whole_;
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace sherd::optim
