/// What hooks print: `<output_dir>/hooks.log`, appended.
///
/// The file is opened when the first line comes. A line that can't be written is dropped, since no
/// hook may end a run.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/store/output_lock.h"

namespace sherd::engine {

class HookLog {
 public:
  /// `lock` is checked before each write; it may be null.
  HookLog(checkpoint::Disk& disk, const std::string& output_dir,
          const checkpoint::OutputLock* lock);

  const std::string& path() const { return path_; }
  /// A line of ours: "[2026-11-26 10:00:00 UTC] TEXT". Begins a new line if the last isn't complete.
  void note(const std::string& text);
  void write(std::string_view text);

 private:
  checkpoint::Disk& disk_;
  const std::string path_;
  const checkpoint::OutputLock* lock_;
  checkpoint::File file_;
  bool in_line_ = false;
};

}  // namespace sherd::engine
