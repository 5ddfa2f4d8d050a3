/// A round's products with the experts' matrices, adapters of these included.
#pragma once

#include <vector>

#include "kernels/cpu/experts/expert_round.h"
#include "kernels/expert_adapters.h"

namespace sherd::kernels::cpu {

struct RoundMatrices {
  ConstTensor up{}, down{};
  ExpertBiases biases{};
  const ExpertAdapters& adapters;
};

/// What an expert's second bias adds to the gradient of a row's weight: <dy, c_e>.
template <class T>
float of_second_bias(const ExpertBiases& biases, std::int64_t expert, const T* dy_D,
                     std::int64_t width) {
  return biases.down ? dot_row(dy_D, biases.down.as<T>() + expert * width, width) : 0.0f;
}

/// up = x's rows times up; activated = the activation of it. x has rows of tokens.
void form_activated(const ExpertRound& round, const RoundMatrices& matrices, const ConstTensor& x);
/// out = activated times down.
void form_outputs(const ExpertRound& round, const RoundMatrices& matrices, const Tensor& out);
/// d_activated = dy's rows times down's transpose. dy has rows of tokens.
void form_d_activated(const ExpertRound& round, const RoundMatrices& matrices,
                      const ConstTensor& dy);
/// d_x = the gradients in up times up's transpose.
void form_d_inputs(const ExpertRound& round, const RoundMatrices& matrices, const Tensor& d_x);

/// The gradients of the adapters, of `pieces`, which are all of the round's. `activated` is weighed,
/// and `up` holds its gradient.
void add_adapter_gradients(const ExpertRound& round, const std::vector<ExpertPiece>& pieces,
                           const ExpertAdapters& adapters, const ConstTensor& x,
                           const ConstTensor& dy);
/// Zeros for the adapters of one expert.
void clear_adapter_gradients(const ExpertsShape& shape, const ExpertAdapters& adapters,
                             std::int64_t expert);

}  // namespace sherd::kernels::cpu
