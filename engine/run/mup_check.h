/// The coordinate check of muP (Yang et al. 2022, arXiv:2203.03466, appendix D.1): models of several
/// widths are trained for a few steps at the same rate, and the size of their activations is
/// compared. With muP it doesn't depend on the width.
///
/// Widths are the base times 1, 2, 4, ... Heads keep their width, so their number grows, and
/// ffn_hidden_size grows in proportion. Each model trains on one rank on the CPU, with a constant
/// rate and micro-batches as batches. After each step, the first validation batch is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct MupCheckRequest {
  RecipeRequest recipe;
  int num_widths = 4;
  int num_steps = 5;
};

/// Sizes of what one layer computes: [width][number of steps done], from 0.
struct LayerSizes {
  std::string name;                         ///< "embedding", "block 0", ..., "logits"
  std::vector<std::vector<double>> mean;    ///< mean |x|
  std::vector<std::vector<double>> change;  ///< mean |x - x before the first step|
  /// d log2(change) / d log2(width) after the last step: about 0 with muP, 1 and more where updates
  /// grow with the width.
  double exponent = 0;
};

struct MupCheck {
  std::vector<std::int64_t> widths;
  std::vector<LayerSizes> layers;
  /// No layer's change grows faster than width^kMostGrowth.
  bool is_flat = false;
  static constexpr double kMostGrowth = 0.4;
};

/// Errors   UsageError: no model.mup_base_hidden_size, widths that the heads don't divide, no
///          validation data; and those of `prepare`.
MupCheck mup_check(const MupCheckRequest& request);
std::string mup_check_text(const MupCheck& check);

}  // namespace sherd::engine
