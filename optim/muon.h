/// Muon (Jordan et al. 2024): the matrices inside blocks move along their orthogonalised momentum;
/// AdamW updates everything else (embeddings, head, norms, biases, and what a group leaves to it).
///
///   m = momentum m + (1 - momentum) g;   u = (1 - momentum) g + momentum m
///   O = orthogonalise(u);   p = p - lr weight_decay p - lr sqrt(max(1, rows / columns)) O
///
/// Input and output of the orthogonalisation are f32; its matmuls are f32 or bf16 (`muon_dtype`).
/// It needs the whole matrix, but state is in slices. At every stage, unit by unit:
///   1. every rank forms u on its slices (at stage 0: on all of them)
///   2. all-gather u into one flat buffer (not needed at stage 0)
///   3. each matrix is orthogonalised by one rank, its owner. Owners are chosen once, to balance
///      the work: the heaviest matrix goes to the rank with the least work
///   4. each owner broadcasts its matrices; every rank updates its slices
/// If tensor ranks have parts of each matrix, the matrices are also distributed over tensor ranks
/// as owners: optim/matrix_parts.h.
/// The result is bit-identical to a single rank: each matrix is computed once, from the same
/// values, by the same matmuls. Sent per rank: about one unit gathered, and one broadcast. Query,
/// key, value, gate and up are separate matrices.
///
/// Memory  momentum for every slice; a second moment only for AdamW's parameters; one full f32
///         buffer of the largest block and the workspace of its largest matrix.
#pragma once

#include "optim/slices.h"

namespace sherd::optim {

/// Whether Muon updates the parameter; otherwise AdamW does. Groups may leave more matrices to AdamW.
bool is_muons(const OptimizerOptions& options, const UnitSpec& unit,
              const ParameterSpec& parameter);

OptimizerDescriptor muon_descriptor();

}  // namespace sherd::optim
