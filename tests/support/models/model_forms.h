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

/// Models of two layers whose sizes 2, 4 and 8 tensor ranks can share, the vocabulary not evenly: the forms above
/// and others, with as many key/value heads as ranks, and fewer.
model::ModelShape cuttable(model::ModelShape shape, std::int64_t kv_heads);
std::vector<ModelForm> cuttable_forms();
/// One of those.
/// Errors   std::out_of_range for another name.
model::ModelShape cuttable_form(const std::string& name);

}  // namespace sherd::testing
