/// Checks of a teacher's tensors (kernels/teacher.h).
#pragma once

#include "kernels/check_tensor.h"
#include "kernels/teacher.h"

namespace sherd::kernels {

inline void check_teacher(const Teacher& teacher, std::int64_t tokens) {
  if (!teacher) return;
  const TeacherForm& form = teacher.form;
  SHERD_CHECK(form.top <= kMostTeacherTokens && form.temperature > 0.0f && form.weight >= 0.0f &&
                  form.weight <= 1.0f,
              "a teacher's {} tokens, weight {}, temperature {}", form.top, form.weight,
              form.temperature);
  check_tensor("teacher: ids", teacher.ids, DType::kI32, tokens * form.top);
  check_tensor("teacher: probabilities", teacher.probabilities, DType::kF32, tokens * form.top);
  check_tensor("teacher: divergences", teacher.divergences, DType::kF32, tokens);
}

}  // namespace sherd::kernels
