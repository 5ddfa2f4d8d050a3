/// Tiny models of other forms than GPT-2's and Llama's, for tests that hold for every model.
#pragma once

#include <string>
#include <vector>

#include "engine/model/shape.h"

namespace sherd::testing {

struct ModelForm {
  std::string name;
  model::ModelShape shape;
};

/// With sizes that divide nothing, dropout, windows shorter than the row, heads that aren't
/// width / heads wide. Together they have every site and every switch of engine/model.
std::vector<ModelForm> model_forms();

}  // namespace sherd::testing
