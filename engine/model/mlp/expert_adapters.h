/// The adapters of a layer's experts as kernels take them (kernels/expert_adapters.h).
#pragma once

#include "engine/model/activations.h"
#include "engine/model/parameters.h"
#include "kernels/expert_adapters.h"

namespace sherd::model {

/// Of the layer that AdapterProducts::begin named; empty if none of its experts' matrices is a
/// target.
kernels::ExpertAdapters expert_adapters(const Activations& activations, const ModelShape& shape,
                                        const BlockParameters& parameters);
/// Where their gradients go.
void set_gradients(kernels::ExpertAdapters& adapters, const ExpertGradients& gradients);

}  // namespace sherd::model
