/// Tiny models in forms other than GPT-2's and Llama's, for tests that hold for every model.
#pragma once

#include <string>
#include <vector>

#include "engine/model/shape.h"

namespace sherd::testing {

struct ModelForm {
  std::string name;
  model::ModelShape shape;
};

/// The models have sizes that divide nothing, dropout, windows shorter than the row, and head
/// widths other than width / heads. Together they have every site and every switch of engine/model.
std::vector<ModelForm> model_forms();
/// Mixtures of experts, which canonical sums don't compute.
std::vector<ModelForm> expert_forms();
/// Latent attention.
std::vector<ModelForm> latent_forms();
/// Attention with sinks and experts with biases.
std::vector<ModelForm> sink_forms();
/// All mixtures of experts, also of those two lists.
std::vector<ModelForm> all_expert_forms();
/// All of these.
std::vector<ModelForm> forms_on_cpus();
/// The shape of the form of that name.
/// Errors   std::out_of_range: there is none.
model::ModelShape shape_named(const std::vector<ModelForm>& forms, const std::string& name);

/// Models of two layers that 2, 4 and 8 tensor ranks can share, with uneven parts of the
/// vocabulary: the forms above and others, with as many key/value heads as ranks, or fewer.
model::ModelShape cuttable(model::ModelShape shape, std::int64_t kv_heads);
std::vector<ModelForm> cuttable_forms();
/// The same of mixtures of experts, and all of these.
std::vector<ModelForm> cuttable_expert_forms();
std::vector<ModelForm> all_cuttable_forms();
/// Mixtures, also of experts with biases and of attention with sinks.
std::vector<ModelForm> cuttable_expert_forms_with_biases();
/// Forms whose sequences context ranks divide: all_cuttable_forms, sinks, and latent attention.
std::vector<ModelForm> context_rank_forms();
/// All of these, latent attention, and sinks.
std::vector<ModelForm> tensor_rank_forms();
/// One of those.
/// Errors   std::out_of_range for another name.
model::ModelShape cuttable_form(const std::string& name);

}  // namespace sherd::testing
