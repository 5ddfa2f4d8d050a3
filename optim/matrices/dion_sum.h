/// Dion's decoupled form (Ahn et al. 2025, arXiv:2504.05295): replicas don't add their gradients. Each
/// keeps a momentum, and they add the two thin factors of Dion's update. For each matrix, with G_w,
/// the gradient of replica w, and the basis Q:
///
///   M_w = M_w + G_w
///   P   = sum over w of M_w Q, made orthonormal
///   R_w = M_w^T P;   R = sum over w of R_w
///   M_w = M_w - (1 - momentum) P R_w^T
///   Q   = R, each column divided by its norm; unchanged where R is zero
///   sum = P Q^T: the direction of the update, which takes the gradient's place (dion.h)
///
/// In exact arithmetic the sum of the M_w is the momentum of dion.h for the sum of the G_w, so the
/// training is Dion's. On one replica it has Dion's bits. (Microsoft's code subtracts the mean of the
/// R_w instead. The updates are the same, but momenta drift apart with the square root of the
/// steps.)
///
/// Matrices   dion.h's. Other parameters are added whole, for AdamW.
/// Average    before every `average_interval`-th step, each M_w becomes the mean of all, which
///            leaves their sum as it is. By the number of steps: a save changes nothing. Not in a step
///            without targets, which changes nothing.
/// State      momentum: each replica's. dion_q: Q, the same on all ranks.
/// Bits and memory: optim/factored_sum.h. CPU only.
#pragma once

#include "optim/factored_sum.h"
#include "optim/optimizer.h"

namespace sherd::optim {

FactorForm dion_form(const DionSumOptions& options);
std::unique_ptr<CompressedSum> make_dion_sum(const Compression& options, const sharding::Rank& rank,
                                             const std::vector<sharding::UnitState>& units,
                                             int num_micro_steps);

}  // namespace sherd::optim
