/// muP: rates and scales that carry over from a narrow model to a wide one (Yang et al. 2022,
/// arXiv:2203.03466), by the rules of Megatron-LM. m = hidden_size / mup_base_hidden_size.
///
///   matrices in blocks    initial values  normal(0, init_std / sqrt(m))
///                         adamw, adam     rate / m, eps / m
///                         lion            rate / m
///                         muon            as they are; those left to AdamW: rate / m, eps / m
///   everything else       sgd             rate x m
///   logits                              x 1 / m  (model.logits_scale)
///   attention scores                    1 / sqrt(head_width), as ever: the base has heads of the
///                                       same width. If the base has as many, narrower heads, set
///                                       attention_scale to sqrt(base head width) / head_width.
///
/// A matrix of one row is a vector here. LAMB and LARS are refused: their trust ratios are a rule of
/// their own.
#pragma once

#include "engine/recipe/recipe.h"

namespace sherd::engine {

class Resolution;

/// m; 1 without muP.
double mup_width_factor(const Recipe& recipe);

/// Derives model.logits_scale.
void derive_mup(Resolution& recipe);
void check_mup(Resolution& recipe);

}  // namespace sherd::engine
