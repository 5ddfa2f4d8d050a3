/// Models and meshes of tests with expert ranks.
#pragma once

#include <string>
#include <vector>

#include "tests/support/models/weighed_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

/// The forms with as many experts as eight ranks can divide.
inline std::vector<ModelForm> divisible_forms() {
  std::vector<ModelForm> forms = expert_forms_on_cpus();
  forms.push_back({"latents_and_experts", shape_named(latent_forms(), "latents_and_experts")});
  for (const ModelForm& form : sink_forms()) forms.push_back(form);
  for (ModelForm& form : forms) {
    form.shape.moe.experts = 8;
    if (form.shape.moe.groups > 1) form.shape.moe.groups = 4;
  }
  return forms;
}

inline model::ModelShape form(const std::string& name) {
  return shape_named(divisible_forms(), name);
}

inline std::vector<sharding::MeshAxis> axes(int expert, int shard, int replicate = 1,
                                            int pipeline = 1) {
  return {{"pipeline", pipeline}, {"replicate", replicate}, {"expert", expert}, {"shard", shard}};
}

}  // namespace sherd::testing
