/// A run's metrics.jsonl as curves over its steps.
///
/// Each step occurs once. If the file contains a step again, because the run continued from an
/// older checkpoint, the earlier lines of that step and later ones are dropped.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

struct CurvePoint {
  std::int64_t step = 0;  ///< steps done
  double value = 0;       ///< NaN if the file has none, as for a non-finite loss
  bool operator==(const CurvePoint&) const = default;
};
/// In the order of steps.
using Curve = std::vector<CurvePoint>;

struct RunHistory {
  Curve loss, val_loss, grad_norm, lr, tokens_per_s, exposed_comm_ms, memory;
  /// Those that a run may lack: of a model with experts, with a z-loss, with a
  /// teacher, with multi-token prediction, and of attention scores.
  Curve balance_loss, z_loss, teacher_divergence, mtp_loss, max_attention_logit;
  Curve data_wait_ms{};                          ///< later programs report it
  std::map<std::string, Curve> source_losses{};  ///< of the training, by source of the data
  /// By validation set, if there are several; "the average of the weights", if that was evaluated.
  std::map<std::string, Curve> val_losses{};
  /// By the whole title of a chart: bits per byte of validation sets, accuracies of tasks.
  std::map<std::string, Curve> scores{};
  std::vector<std::int64_t> bad_steps{};  ///< that weren't applied
  struct Rewind {
    std::int64_t from = 0, to = 0;  ///< steps
  };
  std::vector<Rewind> rewinds{};            ///< because of bad steps
  std::int64_t tokens = 0;                  ///< trained on
  std::optional<std::int64_t> early_end{};  ///< the last step, if early stopping ended the run
  std::int64_t dropped_lines = 0;           ///< of steps that occur again
  /// Share of the time of all programs that reported it which moved the model.
  std::optional<double> goodput{};
  std::string slowest{};  ///< SlowestCounts::text
};

/// The history in the text of a metrics.jsonl. Torn lines and other kinds of lines are ignored.
/// Errors   DataError, which names `path`, if its version is later than this program's.
RunHistory parse_history(std::string_view text, const std::string& path);
/// Errors   DataError also if the folder has no metrics.jsonl that can be read.
RunHistory read_history(const std::string& folder);

/// The point with the lowest value; none if no value is a number.
std::optional<CurvePoint> lowest(const Curve& curve);
/// The last value that is a number.
std::optional<double> last_value(const Curve& curve);
/// The mean of the values that are numbers.
std::optional<double> mean(const Curve& curve);
/// The median; for an even number of values, the upper of the two in the middle.
std::optional<double> median(const Curve& curve);

}  // namespace sherd::engine
