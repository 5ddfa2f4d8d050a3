/// Low-rank adapters for frozen matrices: LoRA (Hu et al., arXiv:2106.09685), rsLoRA
/// (Kalajdzievski, arXiv:2312.03732).
///
///   y += s B (A dropout(x)),      A [r, I], B [O, r]
///   dz = s dy,  h = A dropout(x):    dB = dz^T h,  dh = dz B,  dA = dh^T dropout(x),
///                                    dx += dropout mask of (dh A)
///
/// A target is a matrix, or some rows of a stacked one: an adapter of `attention.query` reads the
/// input of attention.qkv and adds only to the queries.
///
///   target             rows of the site
///   attention.qkv      all of attention.qkv: one A and B for the three
///   attention.query, .key, .value
///   attention.output   all
///   mlp.gate           the gate's, of a gated mlp.up
///   mlp.up             the up projection's
///   mlp.gate_up        both, of a gated mlp.up: one A and B
///   mlp.down           all
///   moe.experts.gate, .up, .down    of each expert's matrix, with a pair A, B for each expert
///
/// Parameters: block.N.TARGET.lora_a and .lora_b, after the model's own parameters. B starts at
/// zero, A uniform in +-1/sqrt(I): Kaiming's uniform with a = sqrt(5), as in PEFT. h isn't kept:
/// the backward computes it again, so no mode of recompute changes what is kept.
/// Of experts, A [E r, I] and B [E O, r] have the pairs one after another, in the unit of their
/// matrices; where ranks divide the experts, a rank has the pairs of its own (expert_cut.h). The
/// mixture computes them (kernels/expert_adapters.h), without dropout.
///
/// On tensor ranks (tensor_cut.h) the adapter is cut like its matrix:
///
///   rows of the matrix      B's rows are cut, A is whole: each rank computes dA from its part of
///                           dz; the sum is over ranks
///   columns                 A's columns are cut, B is whole: each rank computes h from its part of
///                           x. z is part of the sum over ranks that forms the matrix's output. dB
///                           is summed over ranks
///
///   neither (to latents)    A and B are whole: both gradients are sums over ranks
///
/// So the only exchange is one gradient per target and block, or two.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory.h"
#include "core/parameter.h"
#include "core/stream.h"
#include "engine/model/pass.h"
#include "engine/model/sites.h"
#include "kernels/dropout.h"

namespace sherd::model {

struct Affine;

struct AdapterTarget {
  std::string name;  ///< "attention.query"
  SiteId site{};
  std::int64_t first_row = 0, rows = 0;  ///< of the site's matrix, or of each expert's
  std::int64_t inputs = 0;               ///< its columns
  /// If ranks have columns of the matrix: the index of the first one, and the number of all.
  std::int64_t first_input = 0, all_inputs = 0;

  int part = 0;              ///< part of the layer whose unit has the site's matrix
  std::int64_t experts = 0;  ///< number of experts, if it is a matrix of each
  /// If so, A is cut; B is cut if the matrix's rows are.
  bool cuts_inputs() const { return inputs < all_inputs; }
  /// Whether B is cut, if ranks cut the model.
  bool cuts_rows() const { return !cuts_inputs() && !leads_to_latents(site); }
  std::int64_t pairs() const { return experts > 0 ? experts : 1; }
};

/// Every target that some layer has, in its largest size.
std::vector<AdapterTarget> possible_targets(const ModelShape& shape);
/// The targets of shape.adapter in layer `layer`, in the order of the block's sites and rows.
std::vector<AdapterTarget> adapter_targets(const ModelShape& shape, std::int64_t layer);

/// Whether adapters of experts' matrices are among the targets.
bool adapts_experts(const AdapterShape& adapter);
/// "moe.experts.up"
bool is_target_of_experts(std::string_view target);

/// Whether a parameter is an adapter's A or B.
bool is_adapter(std::string_view parameter);
/// Whether a parameter of the model's table is trained: not if its full name is in shape.frozen.
/// With an adapter, only the adapter's own parameters and those of adapter.trained_modules are.
bool is_trained(const ModelShape& shape, std::string_view parameter);
/// Whether any parameter may be frozen.
bool has_frozen(const ModelShape& shape);
/// "block.3.mlp.up.weight" belongs to module "mlp.up", and "head.weight" to "head".
std::string_view module_of(std::string_view parameter);
/// The modules that adapter.trained_modules may name.
std::vector<std::string> possible_modules(const ModelShape& shape);

/// +-bound of the uniform initial values of a `lora_a`; nothing for any other parameter.
std::optional<float> uniform_bound(const ParameterSpec& parameter);

/// How far down the backward of a block has to go.
struct BackwardReach {
  bool attention = true;  ///< its attention, or the norm before the MLP, has something to train
  bool input = true;      ///< something before it needs the gradient of the block's input
};
BackwardReach backward_reach(const ModelShape& shape, std::int64_t block);
/// The lowest block whose backward is run: those below have nothing to train, nor has the
/// embedding. The number of layers if only the head is trained. 0 with an adapter.
std::int64_t lowest_trained_block(const ModelShape& shape);
/// Whether the embedding has something to train.
bool trains_embedding(const ModelShape& shape);

/// A and B of one target, or their gradients.
struct AdapterTensors {
  std::size_t target = 0;  ///< in the layer's adapter_targets
  Tensor a, b;
};

/// The matmuls of all adapters of a model, which share scratch.
class AdapterProducts {
 public:
  using Acquire = std::function<Buffer(BufferSpec)>;
  /// Acquires nothing if all parameters are trained.
  AdapterProducts(const ModelShape& shape, const Acquire& acquire);

  /// Sets the block and pass of the next calls, which dropout depends on.
  void begin(const ModelShape& shape, std::int64_t block, const Pass& pass);
  /// y, the site's output, already has the frozen product.
  void forward(Stream& stream, const Affine& parameters, ConstTensor x, Tensor y,
               Tensor workspace) const;
  /// dx already has the frozen matrix's share; empty: it isn't needed. The parts are separate
  /// calls, in this order, if B's gradient needs more than a rank's share of dy, or if dx
  /// overwrites x.
  struct Parts {
    bool b = true, a = true, input = true;
  };
  void backward(Stream& stream, const Affine& parameters, const Affine& gradients, ConstTensor x,
                ConstTensor dy, Tensor dx, Tensor workspace, const Parts& parts) const;

  float scale() const { return scale_; }
  /// The target in the layer given to `begin`.
  const AdapterTarget& target_of(const AdapterTensors& adapter) const {
    return layers_[static_cast<std::size_t>(block_)][adapter.target].target;
  }

  /// A place for gradients of frozen norms, which are discarded: the kernels always write them.
  /// It exists also without an adapter, if the shape has frozen parameters.
  Tensor discarded(std::int64_t numel) const { return discarded_.tensor().part(0, numel); }

 private:
  void acquire_products(const ModelShape& shape, const Acquire& acquire);
  kernels::Dropout dropout_of(const AdapterTensors& adapter) const;
  ConstTensor dropped(Stream& stream, const AdapterTensors& adapter, ConstTensor x) const;

  struct Target {
    AdapterTarget target;
    std::int64_t site_rows = 0;
  };
  const Target& own(const AdapterTensors& adapter) const {
    return layers_[static_cast<std::size_t>(block_)][adapter.target];
  }

  std::vector<std::vector<Target>> layers_;
  std::int64_t rank_ = 0;
  float scale_ = 1.0f;
  double probability_ = 0.0;
  Buffer h_TR_, d_h_TR_, z_TC_;
  Buffer dropped_TI_;  ///< with dropout
  Buffer discarded_;
  // Set by `begin`.
  std::int64_t tokens_ = 0, block_ = 0, first_token_ = 0;
  kernels::DropoutPart rows_{};  ///< of the sequences
  kernels::RandomAddress address_{};
};

}  // namespace sherd::model
