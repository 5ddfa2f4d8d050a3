/// Requests for a checkpoint while training continues: SIGUSR2 (engine/launch/save_signal.h), and a
/// file `<output_dir>/SAVE`, which is removed when the request is taken.
///
/// Each rank has one and asks it before each step. A signal counts on one rank of the process that
/// got it, the file on rank 0. The ranks share their answers with the step's statistics.
#pragma once

#include <functional>
#include <string>

#include "engine/report/output_folder.h"

namespace sherd::engine {

inline constexpr const char* kSaveFile = "SAVE";

class SaveRequests {
 public:
  /// `looks`: at the file. `listens`: to signals. `say` receives a line for the user.
  SaveRequests(const OutputFolder& output, bool looks, bool listens,
               std::function<void(const std::string&)> say);

  /// Whether there is a request since the last call.
  /// Cost     an lstat(), if it looks
  /// Errors   LockLost, before the file is removed
  bool take();
  /// The source of the last request, for a line to the user: the file's path, or SIGUSR2.
  const std::string& source() const { return source_; }

 private:
  bool take_file();

  const OutputFolder& output_;
  bool looks_;
  const bool listens_;
  const std::function<void(const std::string&)> say_;
  std::string source_;
};

}  // namespace sherd::engine
