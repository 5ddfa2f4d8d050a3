#include "optim/matrices/matrix_parts.h"

#include <algorithm>

#include "kernels/columns.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::optim {
namespace {

// Number of neighbours that have the same part.
std::int64_t copies_of(const MatrixPart& matrix, int degree) {
  return degree * matrix.numel() / matrix.whole_numel();
}

// Rows of each matrix.
std::vector<std::int64_t> stacked(const std::vector<std::int64_t>& rows, std::int64_t all) {
  return rows.empty() ? std::vector{all} : rows;
}

kernels::Columns columns_of(const MatrixPart& matrix, int tensor_rank) {
  return {matrix.rows, matrix.whole_columns, tensor_rank * matrix.columns, matrix.columns};
}

}  // namespace

std::vector<MatrixPart> whole_matrices(const ParameterSpec& parameter) {
  const auto& cut = parameter.cut;
  const std::int64_t columns = cut ? cut->shape[1] : parameter.shape[1];
  std::vector<MatrixPart> matrices;
  for (const std::int64_t rows : cut ? stacked(cut->matrix_rows, cut->shape[0])
                                     : stacked(parameter.matrix_rows, parameter.shape[0])) {
    matrices.push_back({rows, columns, rows, columns});
  }
  return matrices;
}

int first_matrix(const ParameterSpec& parameter) {
  if (!parameter.cut || parameter.matrix_rows.size() == parameter.cut->matrix_rows.size()) return 0;
  const std::int64_t row = parameter.cut->held.front().box.first_row;
  int number = 0;
  std::int64_t end = 0;  // of the matrix before
  for (const std::int64_t rows : parameter.cut->matrix_rows) {
    end += rows;
    if (row < end) break;
    ++number;
  }
  return number;
}

std::vector<MatrixPart> matrix_parts(const ParameterSpec& parameter) {
  const std::vector<std::int64_t> own = stacked(parameter.matrix_rows, parameter.shape[0]);
  std::vector<MatrixPart> parts;
  for (const std::int64_t rows : own) {
    parts.push_back({rows, parameter.shape[1], rows, parameter.shape[1]});
  }
  if (!parameter.cut) return parts;
  const ParameterCut& cut = *parameter.cut;
  const std::vector<std::int64_t> whole = stacked(cut.matrix_rows, cut.shape[0]);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].whole_rows = whole[i];
    parts[i].whole_columns = cut.shape[1];
  }
  return parts;
}

std::vector<BufferSpec> MatrixParts::buffers(const std::vector<MatrixPart>& matrices, int degree) {
  std::int64_t parts = 0, whole = 0;
  for (const MatrixPart& matrix : matrices) {
    parts = std::max(parts, degree * matrix.numel());
    whole = std::max(whole, matrix.whole_numel());
  }
  if (degree == 1 || matrices.empty()) return {};
  return {{"matrix_parts.arriving", Category::kWorkspace, DType::kF32, parts, kUpdate},
          {"matrix_parts.whole", Category::kWorkspace, DType::kF32, whole, kUpdate}};
}

void MatrixParts::add_traffic(const MatrixPart& matrix, std::int64_t numel, int degree,
                              bool is_owner, sharding::Traffic& traffic) {
  using sharding::Collective;
  const sharding::Callers ranks{.count = degree, .axes = {std::string(sharding::kTensorAxis)}};
  traffic.add("parts of matrices", Collective::kAllGather, DType::kF32, degree * matrix.numel(),
              ranks);
  if (is_owner) {
    traffic.add("whole matrices", Collective::kBroadcast, DType::kF32, numel, ranks);
  } else {
    traffic.add_silent("whole matrices", Collective::kBroadcast, DType::kF32, ranks);
  }
}

MatrixParts::MatrixParts(const sharding::Rank& rank, const std::vector<MatrixPart>& matrices)
    : rank_(&rank),
      degree_(rank.mesh.degree(sharding::kTensorAxis)),
      tensor_rank_(rank.mesh.coordinate(rank.rank, sharding::kTensorAxis)),
      ready_(rank.make_event()),
      done_(rank.make_event()) {
  const std::vector<BufferSpec> specs = buffers(matrices, degree_);
  if (specs.empty()) return;
  parts_ = rank.acquire(specs[0]);
  whole_ = rank.acquire(specs[1]);
  ranks_ = &rank.groups->get({std::string(sharding::kTensorAxis)}, sharding::Purpose::kReduce);
}

void MatrixParts::form(const std::string& label, const MatrixPart& matrix, const Tensor& part,
                       int owner) {
  Stream &compute = rank_->compute(), &reduce = rank_->reduce();
  const std::int64_t numel = matrix.numel();
  const Tensor all = parts_.tensor().part(0, degree_ * numel);
  compute.copy(part.data, all.part(tensor_rank_ * numel, numel).data, part.bytes());
  compute.record(*ready_);
  reduce.wait(*ready_);
  ranks_->all_gather(reduce, label, all);
  reduce.record(*done_);
  compute.wait(*done_);
  if (tensor_rank_ != owner) return;
  const Tensor to = whole(matrix);
  const std::int64_t copies = copies_of(matrix, degree_);
  for (int rank = 0; rank < degree_; ++rank) {
    const Tensor theirs = all.part(rank * numel, numel);
    if (matrix.by_columns()) {
      kernels::store_columns(compute, columns_of(matrix, rank), theirs, to);
    } else if (rank % copies == 0) {
      compute.copy(theirs.data, to.part(rank / copies * numel, numel).data, theirs.bytes());
    }
  }
}

void MatrixParts::broadcast(const std::string& label, const Tensor& result, int owner) {
  Stream &compute = rank_->compute(), &reduce = rank_->reduce();
  compute.record(*ready_);
  reduce.wait(*ready_);
  ranks_->broadcast(reduce, label, result, owner);
  reduce.record(*done_);
  compute.wait(*done_);
}

std::int64_t MatrixParts::first_row(const MatrixPart& matrix) const {
  return matrix.by_columns() ? 0 : tensor_rank_ / copies_of(matrix, degree_) * matrix.rows;
}

std::int64_t MatrixParts::first_column(const MatrixPart& matrix) const {
  return matrix.by_columns() ? tensor_rank_ * matrix.columns : 0;
}

void MatrixParts::hand_back(const std::string& label, const MatrixPart& matrix, const Tensor& part,
                            int owner) {
  Stream& compute = rank_->compute();
  const Tensor from =
      tensor_rank_ == owner ? whole(matrix) : parts_.tensor().part(0, matrix.whole_numel());
  broadcast(label, from, owner);
  if (matrix.by_columns()) {
    return kernels::take_columns(compute, columns_of(matrix, tensor_rank_), from, 1.0f, part);
  }
  const std::int64_t before = first_row(matrix) * matrix.columns;
  compute.copy(from.part(before, part.numel).data, part.data, part.bytes());
}

}  // namespace sherd::optim
