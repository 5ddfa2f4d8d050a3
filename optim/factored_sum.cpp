#include "optim/factored_sum.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/columns.h"
#include "kernels/pointwise.h"

namespace sherd::optim {
namespace {

BufferSpec kept_buffer(const FactorForm& form, const sharding::UnitPlan& unit) {
  return {unit.spec.name + "." + form.kept_kind, Category::kOptimizer, DType::kF32,
          unit.part_numel()};
}
BufferSpec basis_buffer(const FactorForm& form, const sharding::UnitPlan& unit,
                        const UnitFactors& factors) {
  return {unit.spec.name + "." + form.basis_kind, Category::kOptimizer, DType::kF32,
          factors.q_numel};
}

// Units take turns with them.
struct Shared {
  std::optional<BufferSpec> full, p, own_q, sum_q, part, workspace;

  std::vector<BufferSpec> list() const {
    std::vector<BufferSpec> list;
    for (const auto* buffer : {&full, &p, &own_q, &sum_q, &part, &workspace}) {
      if (*buffer) list.push_back(**buffer);
    }
    return list;
  }
};

Shared shared_buffers(const FactorForm& form, const sharding::ShardingPlan& plan,
                      int num_micro_steps) {
  std::int64_t full = 0, p = 0, q = 0, sum = 0, part = 0, workspace = 0;
  bool has_others = false;
  const int tensor = plan.mesh.degree(sharding::kTensorAxis);
  for (const sharding::UnitPlan& unit : plan.units) {
    const UnitFactors factors(unit, form.shapes, tensor);
    if (factors.matrices.empty()) continue;
    if (unit.num_parts > 1) full = std::max(full, unit.layout.numel());
    p = std::max(p, factors.first_numel());
    q = std::max(q, factors.q_numel);
    sum = std::max(sum, factors.sum_numel);
    has_others |= unit.num_replicas > 1;
    for (const FactoredMatrix& matrix : factors.matrices) {
      const kernels::LowRankShape own = matrix.shape.of_part();
      if (form.workspace) workspace = std::max(workspace, form.workspace(own));
      if (tensor > 1) part = std::max(part, own.rank * (own.rows + 2 * own.columns));
    }
  }
  Shared shared;
  const auto add = [&](std::optional<BufferSpec>& buffer, const char* name, std::int64_t numel) {
    if (numel == 0) return;
    buffer = {form.buffers + name, Category::kCommunication, DType::kF32, numel,
              phases_of_sums(num_micro_steps)};
  };
  add(shared.full, ".full", full);
  add(shared.p, ".p", p);
  if (has_others) add(shared.own_q, ".own_q", q);
  add(shared.sum_q, ".sum_q", sum);
  add(shared.part, ".part", part);
  add(shared.workspace, ".workspace", workspace);
  return shared;
}

// Gives each of a parameter's matrices its boxes, which are in the order of the part's rows.
void hold_rows(const ParameterSpec& parameter, int tensor_rank,
               std::span<FactoredMatrix> matrices) {
  if (!parameter.cut) {  // all tensor ranks have all of it
    for (FactoredMatrix& matrix : matrices) {
      matrix.rows = {{0, 0, matrix.shape.part.rows, tensor_rank == 0}};
    }
    return;
  }
  auto held = parameter.cut->held.begin();
  std::int64_t before = 0;  // rows of the whole parameter
  for (FactoredMatrix& matrix : matrices) {
    for (std::int64_t rows = 0; rows < matrix.shape.part.rows; ++held) {
      SHERD_CHECK(held != parameter.cut->held.end(), "boxes of {}", parameter.name);
      matrix.rows.push_back({rows, held->box.first_row - before, held->box.num_rows, held->counts});
      matrix.first_column = held->box.first_column;
      rows += held->box.num_rows;
    }
    before += matrix.shape.part.whole_rows;
  }
}

}  // namespace

UnitFactors::UnitFactors(const sharding::UnitPlan& unit, const FactorShapes& shapes,
                         int tensor_degree, int tensor_rank) {
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    std::int64_t offset = unit.layout.offset(static_cast<int>(i));
    int number = 0;
    const std::size_t before = matrices.size();
    for (const FactoredShape& shape : shapes(unit.spec, unit.spec.parameters[i])) {
      matrices.push_back({static_cast<int>(i), number++, offset, p_numel, q_numel, shape});
      offset += shape.numel();
      p_numel += shape.p_numel();
      q_numel += shape.q_numel();
    }
    hold_rows(unit.spec.parameters[i], tensor_rank, std::span(matrices).subspan(before));
  }
  const bool apart = tensor_degree > 1;
  if (apart) p_numel = ReplicaLinks::padded(unit, p_numel, tensor_degree);
  std::int64_t end = p_numel;
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (!shapes(unit.spec, parameter).empty()) continue;
    whole.push_back({unit.layout.offset(static_cast<int>(i)), parameter.numel(), end});
    end += parameter.numel();
  }
  if (apart) {
    whole_numel = ReplicaLinks::padded(unit, end - p_numel);
  } else {
    p_numel = ReplicaLinks::padded(unit, end);
  }
  sum_numel = ReplicaLinks::padded(unit, q_numel, tensor_degree);
}

std::vector<BufferSpec> factored_buffers(const FactorForm& form, const sharding::ShardingPlan& plan,
                                         int num_micro_steps) {
  std::vector<BufferSpec> buffers = shared_buffers(form, plan, num_micro_steps).list();
  for (const sharding::UnitPlan& unit : plan.units) {
    const UnitFactors factors(unit, form.shapes, plan.mesh.degree(sharding::kTensorAxis));
    if (factors.matrices.empty()) continue;
    buffers.push_back(kept_buffer(form, unit));
    buffers.push_back(basis_buffer(form, unit, factors));
  }
  return buffers;
}

sharding::Traffic factored_traffic(const FactorForm& form, const sharding::ShardingPlan& plan) {
  sharding::Traffic traffic;
  const int tensor = plan.mesh.degree(sharding::kTensorAxis);
  for (const sharding::UnitPlan& unit : plan.units) {
    if (!unit.trains()) continue;
    const UnitFactors factors(unit, form.shapes, tensor);
    if (factors.matrices.empty()) {
      ReplicaLinks::add_plain_traffic(unit, traffic);
      continue;
    }
    ReplicaLinks::add_gather_traffic(unit, traffic);
    for (const std::int64_t numel : {factors.p_numel, factors.sum_numel}) {
      if (tensor > 1) {
        traffic.add("factors of matrices", sharding::Collective::kAllReduce, DType::kF32, numel,
                    {.count = tensor, .axes = {std::string(sharding::kTensorAxis)}});
      }
      ReplicaLinks::add_sum_traffic(unit, numel, traffic, tensor);
    }
    if (factors.whole_numel > 0) {
      ReplicaLinks::add_sum_traffic(unit, factors.whole_numel, traffic);
    }
  }
  return traffic;
}

std::int64_t factored_numel(const FactorForm& form, const UnitSpec& unit,
                            const ParameterSpec& parameter) {
  const std::vector<FactoredShape> shapes = form.shapes(unit, parameter);
  std::int64_t numel = shapes.empty() ? parameter.numel() : 0;
  for (const FactoredShape& shape : shapes) numel += shape.p_numel() + shape.q_numel();
  return numel;
}

std::vector<std::int64_t> basis_shape(const FactorForm& form, const UnitSpec& unit,
                                      const ParameterSpec& parameter) {
  std::int64_t vectors = 0, columns = 0;
  for (const FactoredShape& shape : form.shapes(unit, parameter)) {
    vectors += shape.rank;
    columns = shape.part.whole_columns;
  }
  return {vectors, columns};
}

FactoredSum::FactoredSum(FactorForm form, const sharding::Rank& rank,
                         const std::vector<sharding::UnitState>& units, int num_micro_steps)
    : form_(std::move(form)), rank_(&rank), units_(&units), links_(rank, units) {
  const Shared shared =
      shared_buffers(form_, {rank.mesh, sharding::plans_of(units)}, num_micro_steps);
  full_ = rank.acquire(shared.full);
  p_ = rank.acquire(shared.p);
  own_q_ = rank.acquire(shared.own_q);
  sum_q_ = rank.acquire(shared.sum_q);
  part_ = rank.acquire(shared.part);
  workspace_ = rank.acquire(shared.workspace);
  for (const sharding::UnitState& unit : units) {
    factors_.emplace_back(unit.plan(), form_.shapes, links_.tensor_degree(), links_.tensor_rank());
    const bool any = !factors_.back().matrices.empty();
    kept_.push_back(any ? rank.acquire(kept_buffer(form_, unit.plan())) : Buffer());
    bases_.push_back(any ? rank.acquire(basis_buffer(form_, unit.plan(), factors_.back()))
                         : Buffer());
  }
}

void FactoredSum::begin() {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i]) continue;
    kernels::fill_zero(rank_->compute(), kept_[i]);
    for (const FactoredMatrix& matrix : factors_[i].matrices) {
      first_basis(whole_basis(static_cast<int>(i), matrix));
    }
  }
}

void FactoredSum::add(Stream& stream, int unit, const Tensor& part) {
  if (plain_ || factors(unit).matrices.empty()) return links_.sum_plainly(stream, unit, part);
  begin_unit(stream, unit, kept(unit));
  kernels::add(stream, kept(unit), part);
  const Tensor full = links_.gather(stream, unit, part, full_ ? full_.tensor() : Tensor{});
  const Tensor p = sum_rows(stream, unit, full);
  const Tensor sum_q = sum_columns(stream, unit, full, p);
  const Tensor own_q = own_q_ ? own_q_.tensor() : sum_q;
  for (const FactoredMatrix& matrix : factors(unit).matrices) {
    const auto of = [&](const Tensor& q) { return q.part(matrix.in_q, matrix.shape.q_numel()); };
    next_basis(stream, whole_basis(unit, matrix).shape, of(sum_q), of(own_q), basis(unit, matrix));
  }
  restore(stream, unit, part, p, own_q);
}

std::vector<MomentPiece> FactoredSum::own_pieces() const {
  std::vector<MomentPiece> pieces;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const sharding::UnitState& unit = (*units_)[i];
    if (!kept_[i]) continue;
    for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      if (form_.shapes(unit.spec(), parameter).empty()) continue;
      pieces.push_back({form_.kept_kind, unit.own_slice(), parameter.index, piece.first_element,
                        kept_[i].tensor().part(piece.position, piece.count)});
    }
  }
  return pieces;
}

std::vector<MomentPiece> FactoredSum::shared_pieces() const {
  std::vector<MomentPiece> pieces;
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    const sharding::UnitState& unit = (*units_)[i];
    std::int64_t first = 0;  // in the parameter's own
    for (const FactoredMatrix& matrix : factors_[i].matrices) {
      if (matrix.number == 0) first = 0;
      pieces.push_back({form_.basis_kind, unit.own_slice(),
                        unit.spec().parameters[matrix.parameter].index, first,
                        basis(static_cast<int>(i), matrix)});
      first += matrix.shape.q_numel();
    }
  }
  return pieces;
}

FactoredSum::Product FactoredSum::whole_basis(int unit, const FactoredMatrix& matrix) const {
  const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
  const MatrixPart& part = matrix.shape.part;
  return {.shape = {part.whole_rows, part.whole_columns, matrix.shape.rank},
          .parameter = state.spec().parameters[matrix.parameter].index,
          .number = matrix.number,
          .q = basis(unit, matrix)};
}

FactoredSum::Product FactoredSum::product_of(const FactoredMatrix& matrix,
                                             const Tensor& full) const {
  return {.shape = matrix.shape.of_part(),
          .matrix = full.part(matrix.in_unit, matrix.shape.numel()),
          .workspace = workspace_ ? workspace_.tensor() : Tensor{}};
}

// [P of all matrices, whole parameters], summed over replicas; P isn't orthonormal yet.
Tensor FactoredSum::sum_rows(Stream& stream, int unit, const Tensor& full) {
  const UnitFactors& of = factors(unit);
  const bool apart = links_.tensor_degree() > 1;
  const Tensor all = p_.tensor().part(0, of.first_numel()), p = all.part(0, of.p_numel);
  kernels::fill_zero(stream, all);
  for (const FactoredMatrix& matrix : of.matrices) {
    prepare_basis(stream, whole_basis(unit, matrix));
    Product product = product_of(matrix, full);
    const kernels::LowRankShape& shape = product.shape;
    const Tensor to = p.part(matrix.in_p, matrix.shape.p_numel());
    product.q = q_of_part(stream, matrix, basis(unit, matrix), 0);
    product.p = apart ? part_.tensor().part(product.q.numel, shape.rank * shape.rows) : to;
    rows(stream, product);
    for (const HeldRows& held : matrix.rows) {
      if (!apart || !held.counts) continue;
      kernels::move_columns(stream, {shape.rank, shape.rows, held.in_part, held.count}, product.p,
                            {shape.rank, matrix.shape.part.whole_rows, held.in_whole, held.count},
                            to);
    }
  }
  add_tensor_ranks(stream, unit, p);
  for (const AddedWhole& whole : of.whole) {
    const Tensor from = full.part(whole.in_unit, whole.count);
    stream.copy(from.data, all.part(whole.in_p, whole.count).data, from.bytes());
  }
  links_.sum(stream, unit, p, apart);
  if (of.whole_numel > 0) links_.sum(stream, unit, all.part(of.p_numel, of.whole_numel));
  return all;
}

// Makes P orthonormal. Leaves this replica's R in own_q_, if there are others, and returns the sum.
Tensor FactoredSum::sum_columns(Stream& stream, int unit, const Tensor& full, const Tensor& p) {
  const UnitFactors& of = factors(unit);
  const bool apart = links_.tensor_degree() > 1;
  const Tensor sum = sum_q_.tensor().part(0, of.sum_numel);
  kernels::fill_zero(stream, sum);
  for (const FactoredMatrix& matrix : of.matrices) {
    Product product = product_of(matrix, full);
    const kernels::LowRankShape& shape = product.shape;
    const MatrixPart& part = matrix.shape.part;
    const Tensor whole_p = p.part(matrix.in_p, matrix.shape.p_numel());
    kernels::orthonormalise(stream, shape.rank, part.whole_rows, whole_p);
    const Tensor to = sum.part(matrix.in_q, matrix.shape.q_numel());
    product.p = p_of_part(stream, matrix, whole_p, 0, true);
    product.q = apart ? part_.tensor().part(product.p.numel, shape.rank * shape.columns) : to;
    columns(stream, product);
    if (!apart) continue;
    kernels::move_columns(stream, {shape.rank, shape.columns, 0, shape.columns}, product.q,
                          {shape.rank, part.whole_columns, matrix.first_column, shape.columns}, to);
  }
  add_tensor_ranks(stream, unit, sum);
  if (!own_q_) return sum;
  const Tensor own = own_q_.tensor().part(0, of.q_numel);
  stream.copy(sum.data, own.data, own.bytes());
  links_.sum(stream, unit, sum, apart);
  return sum;
}

Tensor FactoredSum::p_of_part(Stream& stream, const FactoredMatrix& matrix, const Tensor& p,
                              std::int64_t at, bool counting) const {
  if (!part_) return p;
  const kernels::LowRankShape shape = matrix.shape.of_part();
  const Tensor own = part_.tensor().part(at, shape.rank * shape.rows);
  if (counting) kernels::fill_zero(stream, own);
  for (const HeldRows& held : matrix.rows) {
    if (counting && !held.counts) continue;
    kernels::move_columns(stream,
                          {shape.rank, matrix.shape.part.whole_rows, held.in_whole, held.count}, p,
                          {shape.rank, shape.rows, held.in_part, held.count}, own);
  }
  return own;
}

Tensor FactoredSum::q_of_part(Stream& stream, const FactoredMatrix& matrix, const Tensor& q,
                              std::int64_t at) const {
  if (!part_) return q;
  const kernels::LowRankShape shape = matrix.shape.of_part();
  const Tensor own = part_.tensor().part(at, shape.rank * shape.columns);
  kernels::move_columns(
      stream, {shape.rank, matrix.shape.part.whole_columns, matrix.first_column, shape.columns}, q,
      {shape.rank, shape.columns, 0, shape.columns}, own);
  return own;
}

void FactoredSum::add_tensor_ranks(Stream& stream, int unit, const Tensor& factors) const {
  if (links_.tensor_ranks() == nullptr) return;
  links_.tensor_ranks()->all_reduce(stream, links_.state(unit).name(), factors);
}

// This rank's slice: the sum, and what this replica hasn't sent of it.
void FactoredSum::restore(Stream& stream, int unit, const Tensor& part, const Tensor& p,
                          const Tensor& own) {
  const std::int64_t begin = links_.state(unit).own_part() * part.numel, end = begin + part.numel;
  // The elements of [first, first + count) that are here: calls use(first one, number, in part).
  const auto here = [&](std::int64_t first, std::int64_t count, const auto& use) {
    const std::int64_t from = std::max(first, begin), to = std::min(first + count, end);
    if (from < to) use(from - first, to - from, from - begin);
  };
  for (const FactoredMatrix& matrix : factors(unit).matrices) {
    here(matrix.in_unit, matrix.shape.numel(),
         [&](std::int64_t first, std::int64_t count, std::int64_t position) {
           const kernels::LowRankShape shape = matrix.shape.of_part();
           const Tensor own_p =
               p_of_part(stream, matrix, p.part(matrix.in_p, matrix.shape.p_numel()), 0, false);
           const std::int64_t q_numel = shape.rank * shape.columns;
           const Tensor own_q = q_of_part(
               stream, matrix, own.part(matrix.in_q, matrix.shape.q_numel()), own_p.numel);
           const Tensor next =
               q_of_part(stream, matrix, basis(unit, matrix), own_p.numel + q_numel);
           kernels::low_rank_restore(stream, shape, {own_p, own_q, next}, first,
                                     part.part(position, count), kept(unit).part(position, count));
         });
  }
  for (const AddedWhole& whole : factors(unit).whole) {
    here(whole.in_unit, whole.count,
         [&](std::int64_t first, std::int64_t count, std::int64_t position) {
           const Tensor from = p.part(whole.in_p + first, count);
           stream.copy(from.data, part.part(position, count).data, from.bytes());
         });
  }
}

}  // namespace sherd::optim
