/// Turns the gradient of a slice into the next parameters of that slice.
///
/// An optimizer holds moments only for the slices that this rank updates, so its memory shrinks
/// with the world size at stages 1-3. Some optimizers need whole tensors, although state is in
/// slices:
///   LAMB, LARS   per-tensor norms, from slice partials in one small exchange (tensor_norms.h)
///   Muon, Dion   whole matrices, one owner each (matrices/matrix_optimizer.h)
///   Adafactor    sums of rows and columns, exact and exchanged (adafactor.h)
/// Equations and sources: kernels/update.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sharding/mesh/traffic.h"
#include "sharding/zero/unit.h"

namespace sherd::optim {

/// Everything that an update needs besides the slice.
struct UpdateStep {
  float lr = 0.0f;
  std::int64_t update_number = 1;  ///< 1 for the first update (Adam's t); skipped steps don't count
  float gradient_scale = 1.0f;     ///< clip factor / loss scale
};

/// Consecutive elements of one parameter's moment in this rank's memory.
/// Of some kinds every rank has all numbers (moment_kinds.h).
struct MomentPiece {
  std::string kind;     ///< "exp_avg", "exp_avg_sq", "momentum"
  int slice_index = 0;  ///< the slice that it belongs to
  std::uint32_t parameter = 0;
  std::int64_t first_element = 0;
  Tensor data;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Called once per step, before the first unit's update. May be a collective.
  virtual void prepare(Stream& /*stream*/, const UpdateStep& /*step*/) {}
  /// Updates the slices of unit `unit` that this rank holds, on `stream`. May be a collective;
  /// units come in the same order on every rank.
  virtual void update(Stream& stream, int unit, const UpdateStep& step) = 0;
  /// The stream whose work so far includes the unit's last update, if that isn't the stream that
  /// `update` was given; otherwise null.
  virtual Stream* updating(int /*unit*/) const { return nullptr; }
  /// Whether `update` also rounds the parameters into the resident copy (UnitState::rounded_slice).
  virtual bool rounds_parameters() const { return false; }
  /// This rank's moments, as ranges of whole parameters; `slice_index` says from which slice they
  /// are.
  virtual std::vector<MomentPiece> moment_pieces() const = 0;
};

/// Selects parameters with weight decay: two or more dimensions, and a name that matches none of
/// `no_decay` (shell patterns, e.g. "*.position.*").
struct WeightDecay {
  float rate = 0.0f;
  std::vector<std::string> no_decay{};

  float rate_of(const ParameterSpec& parameter) const;
};

/// Parameters that are updated differently. The first group with a pattern for a parameter decides.
struct ParameterGroup {
  std::vector<std::string> patterns{};  ///< of names, as in WeightDecay
  float lr_factor = 1.0f;               ///< multiplies the learning rate
  std::optional<float> weight_decay{};  ///< also of vectors; none: WeightDecay decides
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  bool adamw = false;  ///< muon, dion: leave them to AdamW

  bool has(const ParameterSpec& parameter) const;
};

/// How moments are stored. With `stochastic` a bf16 moment is rounded up or down at random, in
/// proportion. The random bits are addressed by (seed, update, tensor, element), so resharding
/// doesn't change the rounding.
struct MomentType {
  DType dtype = DType::kF32;  ///< f32 or bf16
  bool stochastic = false;
  std::uint64_t seed = 0;
  bool in_8_bits = false;  ///< blocks of 64 elements with a scale, instead of `dtype`
};

enum class OptimizerType { kAdamW, kAdam, kSgd, kLion, kLamb, kLars, kMuon, kAdafactor, kDion };

/// Factor on Muon's rate for a matrix: sqrt(max(1, rows / columns)) (Jordan et al. 2024), or 0.2
/// sqrt(max(rows, columns)) (Liu et al. 2025, arXiv:2502.16982), the size of AdamW's updates.
enum class MuonScale { kOriginal, kMatchRmsAdamW };

/// Coefficients of Muon's five iterations: Jordan's, the same in each, or those of Polar Express
/// (Amsel et al. 2025, arXiv:2505.16932), which differ.
enum class MuonCoefficients { kJordan, kPolarExpress };

struct OptimizerOptions {
  OptimizerType type = OptimizerType::kAdamW;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float momentum = 0.0f;             ///< sgd, lars, muon, dion
  float trust_coefficient = 1e-3f;   ///< lars
  float adamw_lr_ratio = 1.0f;       ///< muon, dion: AdamW's rate over theirs
  float dion_rank_fraction = 0.25f;  ///< of the shorter side of a matrix
  bool dion_decoupled = false;       ///< momenta are in the sum over replicas (dion_sum.h)
  float beta2_decay = -0.8f, clip_threshold = 1.0f, min_parameter_rms = 1e-3f;  ///< adafactor
  MuonScale muon_scale = MuonScale::kOriginal;
  MuonCoefficients muon_coefficients = MuonCoefficients::kJordan;
  DType muon_dtype = DType::kF32;  ///< type in which Muon orthogonalises: f32 or bf16
  WeightDecay decay{};
  std::vector<ParameterGroup> groups{};
  MomentType moment_type{};
  sharding::OffloadOptions offload{};

  /// Index of a parameter's group; -1: none.
  int group_of(const ParameterSpec& parameter) const;
  float decay_of(const ParameterSpec& parameter) const;
  float lr_factor_of(const ParameterSpec& parameter) const;
  /// What a group's parameters are updated with; -1: those in no group.
  ParameterGroup rates_of(int group) const;
};

/// Defaults of a recipe.
struct OptimizerDefaults {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0.9;
};

/// Everything that a run knows about one optimizer; optim/registry.cpp has the table. Code outside
/// this folder never asks which optimizer it is.
struct OptimizerDescriptor {
  OptimizerType type;
  /// The kinds of moments that it keeps for a parameter of `unit`.
  std::vector<std::string> (*moment_kinds)(const OptimizerOptions& options, const UnitSpec& unit,
                                           const ParameterSpec& parameter);
  /// All buffers that it acquires on rank `rank`.
  std::vector<BufferSpec> (*buffers)(const OptimizerOptions& options,
                                     const sharding::ShardingPlan& plan, int rank);
  /// What rank `rank` sends in one update.
  sharding::Traffic (*traffic)(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                               int rank);
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions& options, const sharding::Rank& rank,
                                     const std::vector<sharding::UnitState>& units);
  /// Null if all ranks hold and send the same. Otherwise, for slice i of the unit: the number of
  /// additional moment elements that its rank holds. Costs O(parameters + slices), since plans are
  /// made for thousands of ranks.
  std::vector<std::int64_t> (*uneven_numels)(const OptimizerOptions& options,
                                             const sharding::UnitPlan& unit);
  OptimizerDefaults defaults{};
  /// Whether it leaves some parameters to AdamW, at a separate learning rate.
  bool leaves_some_to_adamw = false;
};
const OptimizerDescriptor& descriptor_of(OptimizerType type);

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const sharding::Rank& rank,
                                          const std::vector<sharding::UnitState>& units);

}  // namespace sherd::optim
