/// What a person sees while a run trains: lines that stay, and on a terminal below them one that
/// moves. Anywhere else there are only lines that stay, without control characters.
///
///   step 120/2000  loss 2.4312  41.2k tok/s  exposed 0.4 ms  212 MiB  1m 12s left
///
/// and on a mesh of several axes "exposed 0.4 ms (shard 0.1 ms, tensor 0.3 ms)".
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
  double tokens_per_s = 0;       ///< shown with the loss, as what follows
  std::optional<double>
      mfu{};  ///< share of the matmuls' peak: of GPUs as stated, of CPUs as measured
  double exposed_comm_ms = 0;  ///< per step
  /// Of it, by axis of the mesh; shown where there are several axes.
  std::vector<std::pair<std::string, double>> exposed_by_axis{};
  double comm_cpu_ms = 0;         ///< per step; shown if at least 0.05
  std::int64_t memory_bytes = 0;  ///< peak of one rank
  std::optional<Seconds> time_left{};
};

/// One line of at most `width` characters: what doesn't fit is left out, whole fields at a time,
/// the least important first (processor time, memory, exposed, MFU, rate, time left).
std::string format_progress(const ProgressUpdate& update, int width);

/// Lines and the moving line on one output. Any thread may call.
class Progress {
 public:
  /// Rewrites in place if `out` is a terminal that can (TERM is set and isn't "dumb").
  explicit Progress(std::FILE* out = stdout);
  /// For tests: as told.
  Progress(std::FILE* out, bool in_place, int width);
  ~Progress();  ///< as finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The moving line, in the place of the one before. Nothing but on a terminal.
  void update(const ProgressUpdate& update);
  /// The same as a line that stays; the moving line is gone until the next update.
  void log(const ProgressUpdate& update);
  /// A line that stays, above the moving line. Evaluations, warnings, anything else to print
  /// while a run goes on passes through here.
  void message(std::string_view line);
  /// Takes the moving line away, so that other output may follow.
  void finish();

 private:
  int width() const;
  void print(const std::string& text);

  std::mutex mutex_;
  std::FILE* out_;
  bool in_place_;
  int fixed_width_ = 0;  ///< 0: ask the terminal at every update
  std::string moving_;   ///< the moving line on the screen, empty if there is none
};

}  // namespace sherd::engine
