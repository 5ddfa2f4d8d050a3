/// Sums over replicas of which two thin factors are sent for each matrix: what low_rank_sum.h and
/// matrices/dion_sum.h have in common. For each matrix, with M_w = what replica w adds + what it has
/// kept, and a basis Q that all have:
///
///   P     = sum over w of the first factor of M_w with Q, made orthonormal
///   R_w   = the second factor of M_w with P;   R = sum over w of R_w
///   Q     = the next basis, of R
///   sum   = P Q^T, which takes the place of the sum of gradients
///   kept  = M_w - P R_w^T, each replica's own
///
/// Every rank of a replica gathers the unit and computes its factors, so results are the same at
/// every stage and on any number of shards. Other parameters are added whole, together with the P.
///
/// Tensor ranks have parts of a matrix. Each computes what its part adds to the whole P, and then to
/// the whole R_w; all-reduces over tensor ranks add these. So all of them have the whole factors, with
/// the same bits, and no rank forms a whole matrix.
///
/// State   kept: each replica's, in slices, f32, for units that have matrices; Q, on all ranks
/// Memory  the state; the largest unit, if a replica has several ranks; the largest unit's factors
#pragma once

#include <functional>
#include <optional>

#include "kernels/low_rank.h"
#include "optim/compressed_sum.h"
#include "optim/matrices/matrix_parts.h"

namespace sherd::optim {

struct FactoredShape {
  MatrixPart part;
  std::int64_t rank = 0;

  kernels::LowRankShape of_part() const { return {part.rows, part.columns, rank}; }
  std::int64_t numel() const { return part.numel(); }
  /// Of the factors of the whole matrix.
  std::int64_t p_numel() const { return rank * part.whole_rows; }
  std::int64_t q_numel() const { return rank * part.whole_columns; }
};

/// The shapes of a parameter's matrices, in order; empty: the parameter is added whole. The same for
/// the parameter and for a tensor rank's part of it.
using FactorShapes =
    std::function<std::vector<FactoredShape>(const UnitSpec&, const ParameterSpec&)>;

/// Rows of a tensor rank's part of a matrix.
struct HeldRows {
  std::int64_t in_part = 0, in_whole = 0, count = 0;
  bool counts = true;  // of ranks with copies, one adds its own
};

struct FactoredMatrix {
  int parameter = 0;                // index in the unit
  int number = 0;                   // in the parameter
  std::int64_t in_unit = 0;         // elements before it in the unit's flat buffer
  std::int64_t in_p = 0, in_q = 0;  // elements before its factors
  FactoredShape shape{};
  std::vector<HeldRows> rows{};
  std::int64_t first_column = 0;
};
struct AddedWhole {
  std::int64_t in_unit = 0, count = 0;
  std::int64_t in_p = 0;  // after all P
};

/// What a unit exchanges: [P of all matrices, whole parameters], then [R of all matrices]. With tensor
/// ranks P and whole parameters are apart, since only the latter differ among them.
struct UnitFactors {
  std::vector<FactoredMatrix> matrices{};
  std::vector<AddedWhole> whole{};
  std::int64_t p_numel = 0;      ///< of all P, padded
  std::int64_t whole_numel = 0;  ///< 0: in p_numel
  std::int64_t q_numel = 0;      ///< of all Q
  std::int64_t sum_numel = 0;    ///< of all R, padded

  /// Which rows and columns of matrices are a tensor rank's is in the unit's parameters.
  UnitFactors(const sharding::UnitPlan& unit, const FactorShapes& shapes, int tensor_degree,
              int tensor_rank = 0);
  std::int64_t first_numel() const { return p_numel + whole_numel; }
};

/// What tells one kind of sum from another.
struct FactorForm {
  std::string buffers{};                  ///< prefix of the buffers' names: "power_sgd"
  std::string kept_kind{}, basis_kind{};  ///< kinds of state in checkpoints
  FactorShapes shapes{};
  /// f32 numbers that forming a matrix's factors takes besides; null: none.
  std::int64_t (*workspace)(const kernels::LowRankShape&) = nullptr;
};

std::vector<BufferSpec> factored_buffers(const FactorForm& form, const sharding::ShardingPlan& plan,
                                         int num_micro_steps);
sharding::Traffic factored_traffic(const FactorForm& form, const sharding::ShardingPlan& plan);
/// Elements that replicas exchange for a parameter.
std::int64_t factored_numel(const FactorForm& form, const UnitSpec& unit,
                            const ParameterSpec& parameter);
/// Of Q: [vectors of all the parameter's matrices, columns].
std::vector<std::int64_t> basis_shape(const FactorForm& form, const UnitSpec& unit,
                                      const ParameterSpec& parameter);

class FactoredSum : public CompressedSum {
 public:
  void add(Stream& stream, int unit, const Tensor& part) override;
  void begin() override;
  std::vector<MomentPiece> own_pieces() const override;
  std::vector<MomentPiece> shared_pieces() const override;

 protected:
  FactoredSum(FactorForm form, const sharding::Rank& rank,
              const std::vector<sharding::UnitState>& units, int num_micro_steps);

  /// A matrix or a part of it, and what is computed with it: M [rows, columns], q [rank, columns],
  /// p [rank, rows].
  struct Product {
    kernels::LowRankShape shape{};
    std::uint32_t parameter = 0;  ///< index in the model's table
    int number = 0;               ///< of the matrix in the parameter
    Tensor matrix{}, q{}, p{}, workspace{};
  };
  /// At the beginning of a run.
  virtual void first_basis(const Product& basis) = 0;
  /// Before what is kept is added.
  virtual void begin_unit(Stream& /*stream*/, int /*unit*/, const Tensor& /*kept*/) {}
  /// Before `rows`, of the whole basis.
  virtual void prepare_basis(Stream& /*stream*/, const Product& /*basis*/) {}
  /// p = M q.
  virtual void rows(Stream& stream, const Product& product) = 0;
  /// q = M^T p.
  virtual void columns(Stream& stream, const Product& product) = 0;
  /// From R = `sum`. What is kept then loses P `own`^T, so `own` may be changed. It is `sum` itself
  /// if there is one replica.
  virtual void next_basis(Stream& stream, const kernels::LowRankShape& shape, const Tensor& sum,
                          const Tensor& own, const Tensor& basis) = 0;

  const sharding::Rank& rank() const { return *rank_; }
  const ReplicaLinks& links() const { return links_; }
  /// Whether this step adds whole gradients.
  bool plain_ = false;

 private:
  Product whole_basis(int unit, const FactoredMatrix& matrix) const;
  Product product_of(const FactoredMatrix& matrix, const Tensor& full) const;
  Tensor sum_rows(Stream& stream, int unit, const Tensor& full);
  Tensor sum_columns(Stream& stream, int unit, const Tensor& full, const Tensor& p);
  // What a tensor rank's part of a matrix has of its whole factors, moved into `part_` from element
  // `at` on; with `counting`, rows that another rank counts are 0.
  Tensor p_of_part(Stream& stream, const FactoredMatrix& matrix, const Tensor& p, std::int64_t at,
                   bool counting) const;
  Tensor q_of_part(Stream& stream, const FactoredMatrix& matrix, const Tensor& q,
                   std::int64_t at) const;
  void add_tensor_ranks(Stream& stream, int unit, const Tensor& factors) const;
  void restore(Stream& stream, int unit, const Tensor& part, const Tensor& p, const Tensor& own);
  const UnitFactors& factors(int unit) const { return factors_[static_cast<std::size_t>(unit)]; }
  Tensor kept(int unit) const { return kept_[static_cast<std::size_t>(unit)].tensor(); }
  Tensor basis(int unit, const FactoredMatrix& matrix) const {
    return bases_[static_cast<std::size_t>(unit)].tensor().part(matrix.in_q,
                                                                matrix.shape.q_numel());
  }

  FactorForm form_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  ReplicaLinks links_;
  std::vector<UnitFactors> factors_;  // by unit
  std::vector<Buffer> kept_, bases_;  // by unit; empty: nothing of it is factored
  Buffer full_, p_, own_q_, sum_q_, part_, workspace_;
};

}  // namespace sherd::optim
