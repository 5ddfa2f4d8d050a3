/// What a recipe's keys choose among: enumerations, in the order of the field table's words.
#pragma once

#include "engine/model/shape.h"
#include "optim/average_options.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "sharding/zero/placement.h"

namespace sherd::engine {

enum class DeviceChoice { kAuto, kCpu, kCuda };
enum class NormChoice { kLayerNorm, kRmsNorm };
enum class PositionChoice { kLearned, kRope };
enum class ActivationChoice {
  kGelu,
  kSwiglu,
  kGeluErf,
  kRelu2,
  kGeglu,
  kClampedSwiglu
};  ///< as in kernels/activation.h
inline bool is_gated(ActivationChoice activation) {
  return activation == ActivationChoice::kSwiglu || activation == ActivationChoice::kGeglu ||
         activation == ActivationChoice::kClampedSwiglu;
}
/// Where state is between uses.
enum class OffloadDevice { kNone, kCpu, kNvme };
enum class OnExceed { kAbort, kWarn };
enum class DataFormat { kBytes, kChars, kBin, kText, kChat };
enum class DocumentChoice { kJoined, kSeparate };
enum class PackingChoice { kBestFit, kNone };
enum class TrainOnChoice { kAll, kAssistant, kCompletion, kLast };
enum class UnfitChoice { kDrop, kCut, kError };
enum class RewrittenChoice { kTrainLast, kError };
enum class AdapterChoice { kNone, kLora };
enum class BaseDType { kParamDType, kNf4 };
enum class SumOrderChoice { kRank, kCanonical, kFree };
enum class HierarchicalChoice { kAuto, kOn, kOff };
enum class FinalEval { kBatches, kWhole };
using optim::AverageType;
using optim::OptimizerType;
using sharding::GradSync;
/// In the order of core/dtype.h's DType.
enum class FloatType { kF32, kBF16, kF16 };
/// What ranks send: a type, or blocks (kernels/block_codec.h).
enum class ReduceType { kF32, kBF16, kF16, kInt8Block64, kInt4Block64 };
enum class GatherType { kParamDType, kInt8Block64, kInt4Block64 };
enum class ReplicaReduceType { kGradAccumDType, kInt8Block64, kInt4Block64 };

inline bool in_blocks(ReduceType type) {
  return type >= ReduceType::kInt8Block64;
}
/// The type in which a gradient is formed before it is sent.
inline FloatType formed_in(ReduceType type) {
  return in_blocks(type) ? FloatType::kF32 : static_cast<FloatType>(type);
}
using kernels::BalanceScope;
using kernels::RotaryScaling;
using kernels::RouterScore;
using model::BlockForm;
using model::ContextMethod;
using model::NormPlacement;
using model::QkNorm;
using model::Recompute;
using optim::LossScaling;

}  // namespace sherd::engine
