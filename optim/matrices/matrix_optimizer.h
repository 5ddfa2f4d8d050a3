/// What optimizers that update whole matrices have in common (muon.h, dion.h): slices are divided
/// into matrices and the rest, which AdamW updates.
///
/// State is in slices, but an update needs the whole matrix. At every stage, unit by unit:
///   1. every rank forms a value for each element of its slices
///   2. all-gather of these into one flat buffer (not needed at stage 0)
///   3. each matrix has an owner, which computes with it. Owners are chosen once, to balance the
///      work: the heaviest matrix goes to the rank with the least work
///   4. each owner broadcasts its results; every rank updates its slices
/// If tensor ranks have parts of each matrix, the matrices are also distributed over tensor ranks
/// as owners: optim/matrices/matrix_parts.h. Query, key, value, gate and up are separate matrices.
/// The result is bit-identical to a single rank: each matrix is computed once, from the same
/// values, by the same kernels.
///
/// Memory  momentum for every slice; a second moment only for AdamW's parameters; one full f32
///         buffer of the largest block. Less where momenta are elsewhere (dion_sum.h).
#pragma once

#include <functional>
#include <optional>

#include "optim/matrices/matrix_plan.h"
#include "optim/slices.h"
#include "sharding/comm/communicator.h"

namespace sherd::optim {

class MatrixOptimizer : public Optimizer {
 public:
  void update(Stream& stream, int unit, const UpdateStep& step) override;
  std::vector<MomentPiece> moment_pieces() const override;

 protected:
  /// `ratio_of`: factor on the rate of a matrix.
  MatrixOptimizer(const OptimizerOptions& options, const sharding::Rank& rank,
                  const std::vector<sharding::UnitState>& units, const MatrixBuffers& buffers,
                  const std::function<double(const MatrixPart&)>& ratio_of);

  /// A slice's segments of matrices, each with its ratio.
  struct Matrices {
    UpdatedSlice slice;
    std::vector<float> ratios;
  };
  /// The update of a unit's matrices.
  virtual void update_matrices(Stream& stream, int unit, const UpdateStep& step) = 0;

  const OptimizerOptions& options() const { return options_; }
  const sharding::Rank& rank() const { return *rank_; }
  const sharding::UnitState& state(int unit) const {
    return (*units_)[static_cast<std::size_t>(unit)];
  }
  int num_units() const { return static_cast<int>(units_->size()); }
  const std::vector<OwnedMatrix>& matrices(int unit) const {
    return matrices_[static_cast<std::size_t>(unit)];
  }
  MatrixParts& parts() { return *parts_; }
  /// Calls `use` with the matrices of each slice that this rank updates.
  void for_each_slice(int unit, const std::function<void(const Matrices&)>& use) const;
  /// The unit's flat buffer, and a slice of it.
  Tensor full(int unit) const { return full_.tensor().part(0, state(unit).layout().numel()); }
  Tensor full_slice(int unit, const Matrices& matrices) const {
    return state(unit).layout().slice(full(unit), matrices.slice.slice_index);
  }
  Tensor momentum(int unit, const Matrices& matrices) const {
    return matrices.slice.part_of(moments_[static_cast<std::size_t>(unit)]);
  }
  /// Arguments of the element-wise kernels before and after the work on whole matrices: `update` is
  /// the slice of the flat buffer.
  kernels::MuonUpdate args_of(int unit, const Matrices& matrices, const UpdateStep& step) const;
  void gather(Stream& stream, int unit);
  /// Broadcasts what `result` gives of each matrix from its owner, if there are several slices.
  void broadcast(Stream& stream, int unit, const std::function<Tensor(const OwnedMatrix&)>& result);
  /// Calls for this rank's matrices, in turn: `compute` on the whole matrix. If there are tensor
  /// ranks, each forms one matrix, they compute in parallel, and `hand_back` follows on all.
  struct OwnerCalls {
    std::function<void(const OwnedMatrix&, const Tensor& whole)> compute;
    std::function<void(const OwnedMatrix&)> hand_back;
  };
  void compute_owned(int unit, const OwnerCalls& calls);

 private:
  /// One slice: the part that is updated as matrices, and the part that AdamW updates.
  struct Slice {
    Matrices matrices;
    UpdatedSlice rest;
    std::vector<std::int64_t> rest_positions;  ///< of each rest segment in AdamW's own buffers
    std::vector<kernels::UpdateSegment> rest_alone;  ///< each as if its buffers began with it
    std::vector<ParameterGroup> rest_rates;          ///< of each rest segment
  };
  Slice split(const sharding::UnitState& unit, UpdatedSlice slice, std::int64_t& rest_position,
              const std::function<double(const MatrixPart&)>& ratio_of) const;
  Tensor first_moment(std::size_t unit, const Slice& slice, std::size_t segment) const;
  Tensor second_moment(std::size_t unit, const Slice& slice, std::size_t segment) const;
  void add_rest_pieces(std::size_t unit, const Slice& slice, const std::string& kind,
                       Tensor (MatrixOptimizer::*moment)(std::size_t, const Slice&, std::size_t)
                           const,
                       std::vector<MomentPiece>& pieces) const;
  void update_rest(Stream& stream, int unit, const Slice& slice, const UpdateStep& step) const;
  template <class Collectives>
  void exchange(Stream& stream, const Collectives& collectives);

  OptimizerOptions options_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  std::vector<sharding::Communicator*> communicators_;  // by unit
  std::vector<std::vector<OwnedMatrix>> matrices_;      // by unit
  std::vector<std::vector<Slice>> slices_;              // by unit
  std::vector<Buffer> moments_;     // momentum of matrices, AdamW's first moment of the rest
  std::vector<Buffer> exp_avg_;     // without these: AdamW's first moment alone
  std::vector<Buffer> exp_avg_sq_;  // AdamW's second moment of the rest
  Buffer full_;                     // of one unit at a time
  std::optional<MatrixParts> parts_;
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace sherd::optim
