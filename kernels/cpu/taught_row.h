/// The cross-entropy of a row of logits that a teacher has an opinion of (kernels/teacher.h). The
/// row may be a part of the vocabulary.
#pragma once

#include <array>

#include "kernels/cpu/shaped_rows.h"
#include "kernels/cpu/token.h"
#include "kernels/cpu/wide.h"

namespace sherd::kernels::cpu {

/// The teacher's tokens of one row.
struct TaughtTokens {
  TaughtTokens(const Teacher& teacher, std::int64_t token)
      : form(teacher.form),
        ids(teacher.ids.as<std::int32_t>() + token * form.top),
        probabilities(teacher.probabilities.as<float>() + token * form.top) {}

  /// The sum of p ln p.
  float negative_entropy() const {
    double sum = 0.0;
    for (std::int64_t k = 0; k < form.top; ++k) {
      if (probabilities[k] > 0.0f) sum += double{probabilities[k]} * fast_log(probabilities[k]);
    }
    return static_cast<float>(sum);
  }
  float divergence(float product, float tempered_sum) const {
    return negative_entropy() - product / form.temperature + fast_log(tempered_sum);
  }

  TeacherForm form;
  const std::int32_t* ids;
  const float* probabilities;
};

/// The sum of p (z - maximum) over the teacher's tokens in rows [first, end) of `logits_V`.
template <class T, class Form>
float product_of_row(const TaughtTokens& taught, const T* logits_V, std::int64_t first,
                     std::int64_t end, const VocabularyRows& rows, std::int64_t V, const Form& form,
                     float maximum) {
  double sum = 0.0;
  for (std::int64_t k = 0; k < taught.form.top; ++k) {
    const std::int64_t row = row_of_token(rows, V, taught.ids[k]);
    if (row < first || row >= end || taught.probabilities[k] == 0.0f) continue;
    const float z = form.shape(static_cast<float>(logits_V[row]));
    sum += double{taught.probabilities[k]} * double{z - maximum};
  }
  return static_cast<float>(sum);
}

/// What a row's gradient needs of the whole vocabulary.
struct TaughtSums {
  float maximum, sum, tempered_sum;
};

/// The row becomes its gradient. `target_row`: -1 if another rank has it.
template <class T, class Form>
void differentiate_taught_row(const TaughtTokens& taught, const TaughtSums& sums, float scale,
                              std::int64_t target_row, const VocabularyRows& rows, std::int64_t V,
                              const Form& form, T* logits_V) {
  const float of_target = scale * (1.0f - taught.form.weight);
  const float of_teacher = scale * (taught.form.weight * taught.form.temperature);
  const float factor = of_target / sums.sum, tempered = of_teacher / sums.tempered_sum;
  const float maximum = sums.maximum, inverse = 1.0f / taught.form.temperature;
  const auto softmaxes = [=](float z) {
    return factor * fast_exp(z - maximum) + tempered * fast_exp(inverse * (z - maximum));
  };
  // Rows that more is subtracted from, before the logits are overwritten.
  std::array<std::pair<std::int64_t, float>, kMostTeacherTokens + 1> special;
  std::size_t count = 0;
  bool has_target = target_row < 0;
  const auto add = [&](std::int64_t row, float probability) {
    const float z = form.shape(static_cast<float>(logits_V[row]));
    float gradient = softmaxes(z) - of_teacher * probability;
    if (row == target_row) gradient -= of_target;
    has_target = has_target || row == target_row;
    special[count++] = {row, gradient * form.slope(z)};
  };
  for (std::int64_t k = 0; k < taught.form.top; ++k) {
    const std::int64_t row = row_of_token(rows, V, taught.ids[k]);
    if (row >= 0) add(row, taught.probabilities[k]);
  }
  if (!has_target) add(target_row, 0.0f);
  for_each_shaped_block(logits_V, V, form, [&](std::int64_t first, int n, const float* z) {
    BlockScratch out;
    float* gradient = block_target(logits_V + first, out);
    each_element(n, [=](std::int64_t i) { gradient[i] = softmaxes(z[i]) * form.slope(z[i]); });
    store_block(logits_V + first, n, out);
  });
  for (std::size_t i = 0; i < count; ++i)
    logits_V[special[i].first] = static_cast<T>(special[i].second);
}

}  // namespace sherd::kernels::cpu
