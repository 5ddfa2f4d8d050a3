#include "optim/low_rank_sum.h"

#include <algorithm>
#include <optional>

#include "kernels/low_rank.h"
#include "kernels/pointwise.h"
#include "optim/matrices/matrix_parts.h"

namespace sherd::optim {
namespace {

struct Matrix {
  int parameter = 0;                // index in the unit
  int number = 0;                   // in the parameter
  std::int64_t in_unit = 0;         // elements before it in the unit's flat buffer
  std::int64_t in_p = 0, in_q = 0;  // elements before its factors
  kernels::LowRankShape shape{};

  std::int64_t numel() const { return shape.rows * shape.columns; }
  std::int64_t p_numel() const { return shape.rank * shape.rows; }
  std::int64_t q_numel() const { return shape.rank * shape.columns; }
};
struct Whole {
  std::int64_t in_unit = 0, count = 0;
  std::int64_t in_p = 0;  // after all P
};

// What a unit exchanges: [P of all matrices, whole parameters], then [Q of all matrices].
struct UnitFactors {
  std::vector<Matrix> matrices;
  std::vector<Whole> whole;
  std::int64_t p_numel = 0, q_numel = 0;
};

std::vector<kernels::LowRankShape> shapes_of(const LowRankOptions& options,
                                             const ParameterSpec& parameter) {
  std::vector<kernels::LowRankShape> shapes;
  for (const MatrixPart& part : matrix_parts(parameter)) {
    shapes.push_back({part.rows, part.columns, std::min({options.rank, part.rows, part.columns})});
  }
  return shapes;
}

UnitFactors factors_of(const LowRankOptions& options, const sharding::UnitPlan& unit) {
  UnitFactors factors;
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (!has_low_rank(options, parameter)) continue;
    std::int64_t offset = unit.layout.offset(static_cast<int>(i));
    int number = 0;
    for (const kernels::LowRankShape& shape : shapes_of(options, parameter)) {
      factors.matrices.push_back(
          {static_cast<int>(i), number++, offset, factors.p_numel, factors.q_numel, shape});
      const Matrix& matrix = factors.matrices.back();
      offset += matrix.numel();
      factors.p_numel += matrix.p_numel();
      factors.q_numel += matrix.q_numel();
    }
  }
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (has_low_rank(options, parameter)) continue;
    factors.whole.push_back(
        {unit.layout.offset(static_cast<int>(i)), parameter.numel(), factors.p_numel});
    factors.p_numel += parameter.numel();
  }
  return factors;
}

BufferSpec error_buffer(const sharding::UnitPlan& unit) {
  return {unit.spec.name + "." + kErrorKind, Category::kOptimizer, DType::kF32, unit.part_numel()};
}
BufferSpec basis_buffer(const sharding::UnitPlan& unit, const UnitFactors& factors) {
  return {unit.spec.name + "." + kBasisKind, Category::kOptimizer, DType::kF32, factors.q_numel};
}

// Units take turns with them.
struct Shared {
  std::optional<BufferSpec> full, p, own_q, sum_q;

  std::vector<BufferSpec> list() const {
    std::vector<BufferSpec> list;
    for (const auto* buffer : {&full, &p, &own_q, &sum_q}) {
      if (*buffer) list.push_back(**buffer);
    }
    return list;
  }
};

Shared shared_buffers(const LowRankOptions& options, const std::vector<sharding::UnitPlan>& units,
                      int num_micro_steps) {
  std::int64_t full = 0, p = 0, q = 0, sum = 0;
  bool has_others = false;
  for (const sharding::UnitPlan& unit : units) {
    const UnitFactors factors = factors_of(options, unit);
    if (factors.matrices.empty()) continue;
    if (unit.num_parts > 1) full = std::max(full, unit.layout.numel());
    p = std::max(p, ReplicaLinks::padded(unit, factors.p_numel));
    q = std::max(q, factors.q_numel);
    sum = std::max(sum, ReplicaLinks::padded(unit, factors.q_numel));
    has_others |= unit.num_replicas > 1;
  }
  Shared shared;
  const auto add = [&](std::optional<BufferSpec>& buffer, const char* name, std::int64_t numel) {
    if (numel == 0) return;
    buffer = {name, Category::kCommunication, DType::kF32, numel, phases_of_sums(num_micro_steps)};
  };
  add(shared.full, "power_sgd.full", full);
  add(shared.p, "power_sgd.p", p);
  if (has_others) add(shared.own_q, "power_sgd.own_q", q);
  add(shared.sum_q, "power_sgd.sum_q", sum);
  return shared;
}

class LowRankSum final : public CompressedSum {
 public:
  LowRankSum(const LowRankOptions& options, const sharding::Rank& rank,
             const std::vector<sharding::UnitState>& units, int num_micro_steps)
      : options_(options), rank_(&rank), units_(&units), links_(rank, units) {
    const Shared shared = shared_buffers(options, sharding::plans_of(units), num_micro_steps);
    full_ = rank.acquire(shared.full);
    p_ = rank.acquire(shared.p);
    own_q_ = rank.acquire(shared.own_q);
    sum_q_ = rank.acquire(shared.sum_q);
    for (const sharding::UnitState& unit : units) {
      factors_.push_back(factors_of(options, unit.plan()));
      const bool any = !factors_.back().matrices.empty();
      errors_.push_back(any ? rank.acquire(error_buffer(unit.plan())) : Buffer());
      bases_.push_back(any ? rank.acquire(basis_buffer(unit.plan(), factors_.back())) : Buffer());
    }
    begin();
  }

  void begin() override {
    for (std::size_t i = 0; i < errors_.size(); ++i) {
      if (!errors_[i]) continue;
      kernels::fill_zero(rank_->compute(), errors_[i]);
      kernels::fill_zero(rank_->compute(), bases_[i]);
    }
  }

  void begin_step(std::int64_t step, std::int64_t /*epoch*/, bool has_targets) override {
    plain_ = step < options_.start_step || !has_targets;
  }

  void add(Stream& stream, int unit, const Tensor& part) override {
    const UnitFactors& factors = factors_[static_cast<std::size_t>(unit)];
    if (plain_ || factors.matrices.empty()) return links_.sum_plainly(stream, unit, part);
    kernels::add(stream, errors_[static_cast<std::size_t>(unit)], part);
    const Tensor full = links_.gather(stream, unit, part, full_ ? full_.tensor() : Tensor{});
    const Tensor p = sum_rows(stream, unit, full);
    const Tensor sum_q = sum_columns(stream, unit, full, p);
    restore(stream, unit, part, p, sum_q);
    const Tensor basis = bases_[static_cast<std::size_t>(unit)].tensor();
    stream.copy(sum_q.data, basis.data, basis.bytes());
  }

  std::vector<MomentPiece> own_pieces() const override {
    std::vector<MomentPiece> pieces;
    for (std::size_t i = 0; i < errors_.size(); ++i) {
      const sharding::UnitState& unit = (*units_)[i];
      if (!errors_[i]) continue;
      for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
        const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
        if (!has_low_rank(options_, parameter)) continue;
        pieces.push_back({kErrorKind, unit.own_slice(), parameter.index, piece.first_element,
                          errors_[i].tensor().part(piece.position, piece.count)});
      }
    }
    return pieces;
  }

  std::vector<MomentPiece> shared_pieces() const override {
    std::vector<MomentPiece> pieces;
    for (std::size_t i = 0; i < factors_.size(); ++i) {
      const sharding::UnitState& unit = (*units_)[i];
      std::int64_t first = 0;  // in the parameter's own
      for (const Matrix& matrix : factors_[i].matrices) {
        if (matrix.number == 0) first = 0;
        pieces.push_back({kBasisKind, unit.own_slice(),
                          unit.spec().parameters[matrix.parameter].index, first,
                          bases_[i].tensor().part(matrix.in_q, matrix.q_numel())});
        first += matrix.q_numel();
      }
    }
    return pieces;
  }

 private:
  // [P of all matrices, whole parameters], summed over replicas; P isn't orthonormal yet.
  Tensor sum_rows(Stream& stream, int unit, const Tensor& full) {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    const UnitFactors& factors = factors_[static_cast<std::size_t>(unit)];
    const Tensor basis = bases_[static_cast<std::size_t>(unit)].tensor();
    const std::int64_t numel = ReplicaLinks::padded(state.plan(), factors.p_numel);
    const Tensor p = p_.tensor().part(0, numel);
    for (const Matrix& matrix : factors.matrices) {
      const Tensor q = basis.part(matrix.in_q, matrix.q_numel());
      const std::uint32_t index = state.spec().parameters[matrix.parameter].index;
      const auto site = index * 8u + static_cast<std::uint32_t>(matrix.number);
      kernels::orthonormalise(stream, matrix.shape.rank, matrix.shape.columns, q,
                              kernels::RandomAddress{options_.seed, 0, site});
      kernels::low_rank_rows(stream, matrix.shape, full.part(matrix.in_unit, matrix.numel()), q,
                             p.part(matrix.in_p, matrix.p_numel()));
    }
    for (const Whole& whole : factors.whole) {
      const Tensor from = full.part(whole.in_unit, whole.count);
      stream.copy(from.data, p.part(whole.in_p, whole.count).data, from.bytes());
    }
    if (numel > factors.p_numel) {
      kernels::fill_zero(stream, p.part(factors.p_numel, numel - factors.p_numel));
    }
    links_.sum(stream, unit, p);
    return p;
  }

  // Makes P orthonormal. Leaves this replica's Q in `own`, and returns the sum.
  Tensor sum_columns(Stream& stream, int unit, const Tensor& full, const Tensor& p) {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    const UnitFactors& factors = factors_[static_cast<std::size_t>(unit)];
    const std::int64_t numel = ReplicaLinks::padded(state.plan(), factors.q_numel);
    const Tensor sum = sum_q_.tensor().part(0, numel);
    for (const Matrix& matrix : factors.matrices) {
      const Tensor own_p = p.part(matrix.in_p, matrix.p_numel());
      kernels::orthonormalise(stream, matrix.shape.rank, matrix.shape.rows, own_p);
      kernels::low_rank_columns(stream, matrix.shape, full.part(matrix.in_unit, matrix.numel()),
                                own_p, sum.part(matrix.in_q, matrix.q_numel()));
    }
    if (!own_q_) return sum;
    const Tensor own = own_q_.tensor().part(0, factors.q_numel);
    stream.copy(sum.data, own.data, own.bytes());
    if (numel > factors.q_numel) {
      kernels::fill_zero(stream, sum.part(factors.q_numel, numel - factors.q_numel));
    }
    links_.sum(stream, unit, sum);
    return sum;
  }

  // This rank's slice: the sum, and what this replica hasn't sent of it.
  void restore(Stream& stream, int unit, const Tensor& part, const Tensor& p, const Tensor& sum_q) {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    const UnitFactors& factors = factors_[static_cast<std::size_t>(unit)];
    const Tensor own_q = own_q_ ? own_q_.tensor() : sum_q;
    const Tensor error = errors_[static_cast<std::size_t>(unit)].tensor();
    const std::int64_t begin = state.own_part() * part.numel, end = begin + part.numel;
    // The elements of [first, first + count) that are here: calls use(first one, number, in part).
    const auto here = [&](std::int64_t first, std::int64_t count, const auto& use) {
      const std::int64_t from = std::max(first, begin), to = std::min(first + count, end);
      if (from < to) use(from - first, to - from, from - begin);
    };
    for (const Matrix& matrix : factors.matrices) {
      const auto of = [&](const Tensor& q) { return q.part(matrix.in_q, matrix.q_numel()); };
      here(matrix.in_unit, matrix.numel(),
           [&](std::int64_t first, std::int64_t count, std::int64_t position) {
             kernels::low_rank_restore(
                 stream, matrix.shape,
                 {p.part(matrix.in_p, matrix.p_numel()), of(own_q), of(sum_q)}, first,
                 part.part(position, count), error.part(position, count));
           });
    }
    for (const Whole& whole : factors.whole) {
      here(whole.in_unit, whole.count,
           [&](std::int64_t first, std::int64_t count, std::int64_t position) {
             const Tensor from = p.part(whole.in_p + first, count);
             stream.copy(from.data, part.part(position, count).data, from.bytes());
           });
    }
  }

  LowRankOptions options_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  ReplicaLinks links_;
  std::vector<UnitFactors> factors_;    // by unit
  std::vector<Buffer> errors_, bases_;  // by unit; empty: nothing of it is compressed
  Buffer full_, p_, own_q_, sum_q_;
  bool plain_ = true;
};

}  // namespace

bool has_low_rank(const LowRankOptions& options, const ParameterSpec& parameter) {
  if (parameter.shape.size() != 2) return false;
  std::int64_t factors = 0;
  for (const kernels::LowRankShape& shape : shapes_of(options, parameter)) {
    factors += (shape.rows + shape.columns) * shape.rank;
  }
  return static_cast<double>(factors) * options.min_compression_rate <
         static_cast<double>(parameter.numel());
}

std::vector<std::int64_t> basis_shape(const LowRankOptions& options,
                                      const ParameterSpec& parameter) {
  std::int64_t vectors = 0;
  for (const kernels::LowRankShape& shape : shapes_of(options, parameter)) vectors += shape.rank;
  return {vectors, parameter.shape[1]};
}

std::int64_t low_rank_numel(const LowRankOptions& options, const ParameterSpec& parameter) {
  if (!has_low_rank(options, parameter)) return parameter.numel();
  std::int64_t numel = 0;
  for (const kernels::LowRankShape& shape : shapes_of(options, parameter)) {
    numel += (shape.rows + shape.columns) * shape.rank;
  }
  return numel;
}

std::vector<BufferSpec> low_rank_buffers(const Compression& options,
                                         const sharding::ShardingPlan& plan, int num_micro_steps) {
  std::vector<BufferSpec> buffers =
      shared_buffers(options.low_rank, plan.units, num_micro_steps).list();
  for (const sharding::UnitPlan& unit : plan.units) {
    const UnitFactors factors = factors_of(options.low_rank, unit);
    if (factors.matrices.empty()) continue;
    buffers.push_back(error_buffer(unit));
    buffers.push_back(basis_buffer(unit, factors));
  }
  return buffers;
}

sharding::Traffic low_rank_traffic(const Compression& options, const sharding::ShardingPlan& plan) {
  sharding::Traffic traffic;
  for (const sharding::UnitPlan& unit : plan.units) {
    if (!unit.trains()) continue;
    const UnitFactors factors = factors_of(options.low_rank, unit);
    if (factors.matrices.empty()) {
      ReplicaLinks::add_plain_traffic(unit, traffic);
      continue;
    }
    ReplicaLinks::add_gather_traffic(unit, traffic);
    for (const std::int64_t numel : {factors.p_numel, factors.q_numel}) {
      ReplicaLinks::add_sum_traffic(unit, ReplicaLinks::padded(unit, numel), traffic);
    }
  }
  return traffic;
}

std::unique_ptr<CompressedSum> make_low_rank_sum(const Compression& options,
                                                 const sharding::Rank& rank,
                                                 const std::vector<sharding::UnitState>& units,
                                                 int num_micro_steps) {
  return std::make_unique<LowRankSum>(options.low_rank, rank, units, num_micro_steps);
}

}  // namespace sherd::optim
