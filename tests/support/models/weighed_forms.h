/// Forms with experts whose input is weighted, and with Llama 4's attention, which GPUs don't
/// compute.
#pragma once

#include "tests/support/models/model_forms.h"

namespace sherd::testing {

std::vector<ModelForm> weighed_forms();
/// All forms with experts.
std::vector<ModelForm> expert_forms_on_cpus();

}  // namespace sherd::testing
