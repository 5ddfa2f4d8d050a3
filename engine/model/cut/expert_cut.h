/// How the experts of every layer are divided over expert ranks: rank r of R has experts
/// [r E / R, (r + 1) E / R), whole. Everything else is the same on every rank.
///
///   parameter             [rows, columns]     cut
///   moe.experts.up        [E U, D]            rows: experts
///   moe.experts.down      [E D, F]            rows: experts
///
/// Experts are whole, and not cut by their width: with the widths that models have (F <= 2048) a
/// part of an expert is too little work for a matmul, and a token's row would go to several ranks.
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
ParameterCut expert_cut(const ModelShape& own, const ParameterSpec& parameter);

/// "block.7.moe.experts.up.weight"
bool is_of_experts(std::string_view parameter);

}  // namespace sherd::model
