/// Writes a teacher's file (engine/distillation/teacher_file.h): what a trained model finds likely
/// to follow each token of another run's samples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/inference/evaluate.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct TeacherRequest {
  TrainedModelRequest teacher;
  ResolvedRecipe student;
  std::int64_t top = 0;  ///< tokens of each token; 0: the student's distillation.top_k
  std::string path;      ///< of the file; empty: the student's distillation.teacher
  std::function<void(const std::string&)> on_note{};
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};  ///< samples
};
struct SavedTeacher {
  std::string path;
  std::int64_t samples = 0, tokens_per_sample = 0, top = 0;
};

/// The most tokens that a file can have for each token.
std::int64_t most_teacher_tokens();

/// The teacher reads separate documents separately. Ranks share the samples; the file doesn't depend
/// on their number. Only ids of the student's vocabulary are written.
/// Errors   UsageError: other vocabularies, a teacher whose longest text is shorter than a sample,
///          more tokens than the vocabulary has; checkpoint::DiskError; Interrupted. Then there is no file.
SavedTeacher save_teacher(const TeacherRequest& request);

}  // namespace sherd::engine
