/// Low-rank adapters of experts' matrices (kernels/experts.h): a pair A_e, B_e for each expert and
/// each target.
///
///   y  += s B_e (A_e x)          y: the target's columns of what the expert's matrix W_e forms
///   dx += A_e^T d_h              d_h = s B_e^T dy
///   dA_e += d_h x^T,  dB_e += dy h^T                                              h = s A_e x
///
/// Shapes    A [E r, I], B [E O, r]: an expert's rows one after another; I the inputs of W_e, O the
///           number of its outputs that the target has. r is at most I and O.
/// Types     of the matrices and rows: one; h and d_h are rounded to it. Gradients f32 or the same.
/// Bits      a row's results follow from the row, W_e, A_e and B_e. A gradient adds pieces of rows
///           in order, as a matrix's gradient does. An expert without rows gets zeros.
/// Weights   of choices: the output's are applied after down, so adapters of down have rows x that
///           are weighed in the backward, and those of up weighed rows dy.
/// Devices   CPUs only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace sherd::kernels {

struct ExpertsShape;

struct ExpertAdapter {
  ConstTensor a, b;
  std::int64_t first_output = 0, outputs = 0;  ///< of an expert's matrix
  Tensor d_a{}, d_b{};                         ///< for the backward
};

struct ExpertAdapters {
  std::int64_t rank = 0;
  float scale = 1.0f;
  std::vector<ExpertAdapter> up{}, down{};
  Tensor h{};  ///< [C, r]: a round's h, or d_h
  Tensor z{};  ///< [C, F]: what is added to some columns of the up product

  explicit operator bool() const { return !up.empty() || !down.empty(); }
};

/// CHECKs sizes and types; `with_gradients`: as the backward needs them.
void check_adapters(const ExpertsShape& shape, const ExpertAdapters& adapters, DType dtype,
                    bool with_gradients);

}  // namespace sherd::kernels
