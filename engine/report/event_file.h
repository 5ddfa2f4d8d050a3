/// The run's curves for TensorBoard, in <output_dir>/tensorboard, and for tools that import its
/// files (W&B, Aim, ClearML, Comet).
///
/// An event file is a sequence of records: u64 length, u32 masked CRC-32C of these 8 bytes, the
/// event in protocol-buffer form, u32 masked CRC-32C of the event; little-endian. The first event
/// names the version, brain.Event:2. A file begins with a session's start at its first step:
/// TensorBoard then ignores what earlier files of the folder contain for that step and later ones,
/// so a run that was killed and resumed shows one line.
///
/// Values are f32, and files aren't synced: metrics.jsonl is the exact record. So a problem with
/// these files doesn't end a run; it is reported once, and no more events are written.
///
/// Source   tensorflow/core/util/event.proto and framework/summary.proto; read by TensorBoard 2.21.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/store/output_lock.h"
#include "engine/report/metrics.h"

namespace sherd::engine {

/// CRC-32C (Castagnoli), as in RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  using Notice = std::function<void(const std::string&)>;

  /// The first event starts a new file, for the steps after `steps_done`. So restarting a finished
  /// run adds no file. `lock`: of the run's folder.
  EventFile(checkpoint::Disk& disk, const std::string& folder, const checkpoint::OutputLock& lock,
            std::int64_t steps_done, Notice notice);

  void write(const StepMetrics& metrics);
  void write(const EvaluationMetrics& metrics);
  void write_text(std::int64_t step, const std::string& tag, const std::string& text);

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;

  void write_scalars(std::int64_t step, const Scalars& scalars);
  void write_event(std::string_view event);
  void begin();
  void append(std::string_view event);

  checkpoint::Disk& disk_;
  std::string folder_;
  const checkpoint::OutputLock& lock_;
  std::int64_t steps_done_;
  Notice notice_;
  bool began_ = false;
  std::optional<checkpoint::File> file_;  // none before the first event, and after a problem
  std::int64_t end_ = 0;
};

}  // namespace sherd::engine
