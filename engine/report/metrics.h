/// The run's numbers, one JSON object per line in <output_dir>/metrics.jsonl.
///
///   {"metrics_version":2}
///   {"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,"tokens_per_s":81234.5,
///    "exposed_comm_ms":0.25,"comm_cpu_ms":1.5,"isa":"avx512",
///    "peak_bytes":{"parameters":...,"total":...}}
///   {"step":12,"saved":12,"bytes":1474560,"write_mib_per_s":812.5,"stalled_ms":0.25,"save_s":0.5}
///   {"step":12,"val_loss":4.125,"val_loss_20_batches":4.0625,"num_tokens":111488}
///
/// A run that early stopping ends has one line more:
///
///   {"step":12,"stopped_early":true,"best_val_loss":4.125,"best_step":8}
///
/// "step" is the number of steps done, as on the screen and in the names of checkpoints: the first
/// step is 1. A file without the first line is of version 1, in which the first step was 0; a run
/// that goes on with one writes it anew as version 2.
///
/// Of ranks in several processes over MPI a step's line also has
/// "sent_bytes":{"within_machines":4718592,"to_other_machines":1572864}, by all of them since the line before.
///
/// With several ranks a step's line also has
///
///    "exposed_comm_ms_by_axis":{"shard":0.0625,"tensor":0.125}
///
/// for which ranks that rank waited whose "exposed_comm_ms" it is: those along each axis that has several. Together
/// they are less where all ranks of several axes exchanged the step's statistics. Of the ZeRO group's time, where
/// shard and context have several ranks, all is under "shard".
///
/// On a GPU whose matmuls have a table of measured algorithms a step's line has "matmul_table":"34 measured matmul
/// algorithms of ..." instead of "isa".
///
/// With separate documents a step's line also has "loss_tokens":1513, those that have a target; with
/// 0 the step updated nothing. With loss scaling a step's line also has "loss_scale":65536.0,"skipped":false; a skipped step
/// has "skipped":true and "overflow", which names the tensor, the element, the unit and the rank
/// that owns the slice.
///
/// Numbers are decimals that read back as exactly the same double, so equal losses are equal text
/// and the reverse. JSON has no NaN or infinity: a non-finite number is null, and beside it stands
/// e.g. "loss_text":"nan" (or "inf", "-inf").
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store/output_lock.h"
#include "core/link_bytes.h"
#include "core/memory.h"

namespace sherd::engine {

/// Of the first line.
inline constexpr const char* kMetricsVersionKey = "metrics_version";
inline constexpr std::int64_t kMetricsVersion = 2;
/// A line that is longer is none of ours; a file that is larger isn't read.
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 16;
inline constexpr std::int64_t kMostMetricsBytes = std::int64_t{4} << 30;
/// Errors   DataError naming file and version if it isn't known
void require_known_metrics(bool known, const std::string& version, const std::string& path);

struct StepMetrics {
  std::int64_t step = 0;  ///< steps done, this one included; so in all of them
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  ///< since the start of training, over all ranks
  /// With separate documents: the tokens of this step that `loss` is the mean over.
  std::optional<std::int64_t> loss_tokens{};
  double tokens_per_s = 0;
  double exposed_comm_ms = 0;  ///< the compute stream stood still for communication
  /// Of it, by axis of the mesh, those with several ranks.
  std::vector<std::pair<std::string, double>> exposed_by_axis{};
  double comm_cpu_ms = 0;            ///< processor time that communication took from computing
  std::optional<LinkBytes> sent{};   ///< over MPI: bytes of tensors, by all ranks
  std::optional<double> loss_scale;  ///< with loss scaling: this step's
  bool skipped = false;              ///< with loss scaling: the gradient overflowed, no update
  std::string overflow;              ///< of a skipped step: the first non-finite gradient
  std::string isa;               ///< on a CPU: the instruction set of its matmuls (kernels/isa.h)
  std::string matmul_table{};    ///< on a GPU with one: measured algorithms (kernels/libraries.h)
  BytesByCategory peak_bytes{};  ///< each category's own maximum; only those above 0 are written
  std::int64_t total_peak_bytes = 0;
};

struct EvaluationMetrics {
  std::int64_t step = 0;
  double val_loss = 0;
  std::optional<double> val_loss_20_batches{};
  std::int64_t num_tokens = 0;                          ///< over which val_loss is the mean
  std::optional<double> perplexity{}, bits_per_byte{};  ///< of `sherd eval`
};

/// A checkpoint has been committed. Its line stands when that is known, which may be steps later.
struct SaveMetrics {
  std::int64_t saved = 0;  ///< steps done in the checkpoint
  std::int64_t bytes = 0;  ///< of one rank's state
  double write_mib_per_s = 0;
  double stalled_ms = 0;  ///< an update waited so long until its slice was copied
  double save_s = 0;      ///< from the save's begin to its last fsync
};

/// The validation loss didn't get any better, so the run ends before its last step.
struct EarlyStopMetrics {
  std::int64_t step = 0;
  double best_val_loss = 0;
  std::int64_t best_step = 0;
};

/// One line each, without the newline.
std::string to_json(const StepMetrics& metrics);
std::string to_json(const SaveMetrics& metrics);
std::string to_json(const EvaluationMetrics& metrics);
std::string to_json(const EarlyStopMetrics& metrics);

/// What a resumed run doesn't write again stays: the lines of the first `num_steps` steps, but not
/// the evaluation after them if it comes anew (`evaluates_anew`). All others go, a torn last line too.
/// What stays is of the present version. Atomic and durable; a file that isn't there stays away.
/// Errors   DataError naming the file, also if it is a link, a pipe or a device, or of a version that
///          came later than this program.
void keep_metrics_of(const std::string& path, std::int64_t num_steps, bool evaluates_anew = false,
                     checkpoint::Disk& disk = checkpoint::posix_disk());

struct MetricsOptions {
  checkpoint::Disk* disk = &checkpoint::posix_disk();
  /// Of the folder that the file is in; checked before each write.
  const checkpoint::OutputLock* lock = nullptr;
  std::function<void(const std::string&)> notice{};  ///< told that the file had gone
};

/// Appends whole lines, each in one write, the first one of a file with the file's version, so neither a reader nor a kill leaves half a line. A file
/// that somebody has removed while the run goes on is made again, and one that was put in its place
/// is gone on with; that is told to `notice`.
/// Errors   DataError naming the file if it can't be opened or written (a full disk: what was
///          written of the line is taken back), or is no plain file with this one name; LockLost.
class MetricsWriter {
 public:
  enum class Existing { kReplace, kContinue };  ///< what to do with an earlier run's lines

  MetricsWriter(std::string path, Existing existing, MetricsOptions options = {});

  void write(const StepMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const EvaluationMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const SaveMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const EarlyStopMetrics& metrics) { write_line(to_json(metrics)); }

  /// A save may fill the disk and give the room back: lines that don't fit wait in memory, up to a
  /// MiB, and go out with the next one or with sync().
  void wait_for_room(bool wait) { waits_for_room_ = wait; }

  /// Everything written so far is on the disk itself, and so is the file's name.
  /// Errors   as above.
  void sync();

 private:
  void open();
  void open_again_if_gone();
  void write_line(std::string line);
  void write_waiting(bool may_stay);

  std::string path_;
  MetricsOptions options_;
  checkpoint::File file_;
  bool new_name_ = true;  ///< the folder hasn't been synced since it was opened
  bool waits_for_room_ = false;
  std::string waiting_;  // whole lines
};

}  // namespace sherd::engine
