/// What a run's metrics.jsonl tells, as curves over its steps.
///
/// Each step stands once: where the file has a step again, which a run that went on from an older
/// checkpoint may leave, what it said before of that step and later ones is dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

struct CurvePoint {
  std::int64_t step = 0;  ///< steps done
  double value = 0;       ///< NaN where the file has none, as for a loss that isn't finite
  bool operator==(const CurvePoint&) const = default;
};
/// In the order of steps.
using Curve = std::vector<CurvePoint>;

struct RunHistory {
  Curve loss, val_loss, grad_norm, lr, tokens_per_s, exposed_comm_ms, memory;
  std::int64_t tokens = 0;                  ///< trained on
  std::optional<std::int64_t> early_end{};  ///< the step after which early stopping ended it
  std::int64_t dropped_lines = 0;           ///< of steps that stand there again
};

/// The history in the text of a metrics.jsonl. Lines that are torn or of another kind are left out.
/// Errors   DataError if it is of a version that came later than this program; `path` names it.
RunHistory parse_history(std::string_view text, const std::string& path);
/// Errors   DataError also if the folder has no metrics.jsonl that can be read.
RunHistory read_history(const std::string& folder);

/// The point with the lowest value; none if no value is a number.
std::optional<CurvePoint> lowest(const Curve& curve);
/// The last value that is a number.
std::optional<double> last_value(const Curve& curve);
/// The middle value; of an even number of values the upper of the two in the middle.
std::optional<double> median(const Curve& curve);

}  // namespace sherd::engine
