/// How the experts of every layer are divided over expert ranks: rank r of R has experts
/// [r E / R, (r + 1) E / R), whole. Everything else is the same on every rank.
///
///   parameter             [rows, columns]     cut
///   moe.experts.up        [E U, D]            rows: experts
///   moe.experts.down      [E D, F]            rows: experts
///   their biases          [E U], [E D]        rows: experts
///
/// Tensor ranks cut what an expert rank has by its width (tensor_cut.h); each exchanges rows with
/// the expert ranks that have the same part of the width.
#pragma once

#include <string_view>
#include <vector>

#include "core/parameter.h"
#include "engine/model/shape.h"

namespace sherd::model {

/// The shape of what rank `rank` of `degree` holds.
/// Errors   UsageError if the degree doesn't divide the experts.
ModelShape expert_part(const ModelShape& whole, int degree, int rank);

/// The cut of a parameter of experts, as it is in the table of `expert_part(...)`.
ParameterCut expert_cut(const ExpertPart& own, const ParameterSpec& parameter);
/// The same of one that tensor ranks cut, too. `of_own`: its cut as if this rank's experts were all
/// there are.
ParameterCut expert_cut(const ExpertPart& own, ParameterCut of_own);

/// "block.7.moe.experts.up.weight"
bool is_of_experts(std::string_view parameter);

}  // namespace sherd::model
