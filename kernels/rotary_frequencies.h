/// The angle by which rotary position embedding rotates each pair of a head per position.
///
///   f_j = theta^(-2j/r)         j < r/2, r = the rotated part of the head: floor(K * fraction)
///   f_j = 0                     for the other pairs, which aren't rotated
///
/// Scalings for texts longer than C positions, the original training length (w_j = 2 pi / f_j):
///
///   linear    f_j / s
///   llama3    f_j where w_j < C / b,  f_j / s where w_j > C / a,  between them
///             (1 - t) f_j / s + t f_j  with t = (C / w_j - a) / (b - a)
///   yarn      (1 - m_j) f_j + m_j f_j / s,  m_j a ramp over j from 0 at d(fast) to 1 at d(slow)
///             with d(n) = r ln(C / (2 pi n)) / (2 ln theta), clamped to [0, r - 1]; `truncate`:
///             floor and ceiling of the two
///   longrope  f_j / list_j: the short list for rows of at most C positions, the long one beyond
///
/// and a factor on the cosines and sines of rotated pairs: the given one; otherwise 0.1 ln s + 1
/// for yarn, sqrt(1 + ln s / ln C) for longrope, and 1 for the others and wherever s <= 1.
///
/// Sources   linear: Chen et al. 2023 (arXiv:2306.15595). llama3: Llama Team 2024
///           (arXiv:2407.21783). yarn: Peng et al. 2023 (arXiv:2309.00071). longrope: Ding et al.
///           2024 (arXiv:2402.13753).
/// Types     double.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kinds.h"

namespace sherd::kernels {

/// r, the rotated part of a head of this width.
std::int64_t rotated_width(const RotaryFrequencies& frequencies, std::int64_t head_width);

/// The fraction of a head of this width that has exactly `rotated` rotated numbers.
double fraction_of(std::int64_t rotated, std::int64_t head_width);

/// The K/2 frequencies for rows of `positions` positions.
std::vector<double> frequencies_of_pairs(const RotaryFrequencies& frequencies,
                                         std::int64_t head_width, std::int64_t positions);

/// The factor on cosines and sines.
double rotary_factor(const RotaryFrequencies& frequencies);

}  // namespace sherd::kernels
