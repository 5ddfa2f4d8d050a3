/// The output of a training run: permanent lines, and below them, on a terminal, one line that is
/// rewritten. Other outputs only get permanent lines, without control characters.
///
///   step 120/2000  loss 2.4312  41.2k tok/s  exposed 0.4 ms  212 MiB  1m 12s left
///
/// On a mesh of several axes, it has "exposed 0.4 ms (shard 0.1 ms, tensor 0.3 ms)".
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/human_text.h"

namespace sherd::engine {

struct ProgressUpdate {
  std::int64_t step = 0;  ///< steps done
  std::int64_t max_steps = 0;
  std::optional<double> loss{};  ///< none before the first step
  double tokens_per_s = 0;       ///< shown with the loss, like the fields below
  /// Share of the matmuls' peak: of GPUs as stated, of CPUs as measured.
  std::optional<double> mfu{};
  double exposed_comm_ms = 0;               ///< per step
  std::optional<double> exposed_disk_ms{};  ///< the same for waits for state on disk
  /// The same by mesh axis; shown if there are several axes.
  std::vector<std::pair<std::string, double>> exposed_by_axis{};
  double comm_cpu_ms = 0;         ///< per step; shown if at least 0.05
  std::int64_t memory_bytes = 0;  ///< peak of one rank
  std::optional<Seconds> time_left{};
};

/// One line of at most `width` characters. If it is too long, whole fields are omitted, the least
/// important first (processor time, memory, exposed, MFU, rate, time left).
std::string format_progress(const ProgressUpdate& update, int width);

/// Permanent lines and the rewritten line on one output. Thread-safe. Only `finish` waits for whoever
/// reads the output: until then, up to 1 MiB of lines wait for a reader that has paused, and the rest is
/// left out and counted.
class Progress {
 public:
  /// Rewrites in place if `out` is a terminal that supports it (TERM is set and isn't "dumb").
  explicit Progress(std::FILE* out = stdout);
  /// For tests: fixed terminal and width.
  Progress(std::FILE* out, bool in_place, int width);
  ~Progress();  ///< as finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Rewrites the moving line. Does nothing unless on a terminal.
  void update(const ProgressUpdate& update);
  /// The same as a permanent line; removes the moving line until the next update.
  void log(const ProgressUpdate& update);
  /// Prints a permanent line above the moving line. Everything else that is printed during a run,
  /// such as evaluations and warnings, uses this.
  void message(std::string_view line);
  /// Removes the moving line and writes what waits, so that other output may follow.
  void finish();

 private:
  int width() const;
  void print(const std::string& text);
  bool write_waiting();
  std::string left_out();
  bool takes_more() const;
  void write(std::string_view text);

  std::mutex mutex_;
  std::FILE* out_;
  bool in_place_;
  int fixed_width_ = 0;  ///< 0: ask the terminal at every update
  std::string moving_;   ///< the moving line on the screen, empty if there is none
  std::string waiting_;  ///< for a reader
  std::int64_t num_left_out_ = 0;
};

}  // namespace sherd::engine
