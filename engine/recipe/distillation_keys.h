/// Training on a teacher's distributions: block `distillation` of a recipe.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::engine {

/// kernels/teacher.h has the equations, engine/distillation/teacher_file.h the file.
struct DistillationKeys {
  std::string teacher;  ///< a file; empty: no distillation
  std::int64_t top_k = 0;
  double weight = 0, temperature = 1;

  bool active() const { return !teacher.empty(); }
};

}  // namespace sherd::engine
