/// Muon (Jordan et al. 2024): the matrices inside blocks move along their orthogonalised momentum;
/// AdamW updates everything else (embeddings, head, norms, biases, and what a group leaves to it).
///
///   m = momentum m + (1 - momentum) g;   u = (1 - momentum) g + momentum m
///   O = orthogonalise(u);   p = p - lr weight_decay p - lr sqrt(max(1, rows / columns)) O
///
/// Input and output of the orthogonalisation are f32; its matmuls are f32 or bf16 (`muon_dtype`).
/// How ranks share the work: optim/matrices/matrix_optimizer.h. u is gathered; owners broadcast O. Sent per
/// rank: about one unit gathered, and one broadcast.
///
/// Memory  that of every optimizer of matrices, and the workspace of the largest one.
#pragma once

#include "optim/optimizer.h"

namespace sherd::optim {

OptimizerDescriptor muon_descriptor();

}  // namespace sherd::optim
