/// The run's numbers, one JSON object per line in <output_dir>/metrics.jsonl.
///
///   {"metrics_version":2}
///   {"step":12,"loss":4.25,"grad_norm":1.5,"lr":0.001,"tokens":9984,"tokens_per_s":81234.5,
///    "exposed_comm_ms":0.25,"comm_cpu_ms":1.5,"isa":"avx512",
///    "peak_bytes":{"parameters":...,"total":...}}
///   {"step":12,"saved":12,"bytes":1474560,"write_mib_per_s":812.5,"stalled_ms":0.25,"save_s":0.5}
///   {"step":12,"val_loss":4.125,"val_loss_20_batches":4.0625,"num_tokens":111488}
///
/// With several validation sets, an evaluation's line also has each one's loss, such as
/// "val_loss/english":4.125; "val_loss" and "num_tokens" are the main set's. With several sources,
/// a step's line also has "source_tokens":{"english":6656,"code":3328}, since the start of
/// training. With metrics.source_losses it has "loss/english":4.25, the mean over the step's tokens
/// of the source; a source without tokens in the step is left out.
///
/// With averages.evaluate, an evaluation's line also has "val_loss_average". Where the bytes of a
/// set's text are known, it has "bits_per_byte", and with several sets "bits_per_byte/english". For
/// each of training.tasks it has "task/hellaswag/acc":0.25, "task/hellaswag/acc_norm":0.3125 and
/// "task/hellaswag/questions":10042.
///
/// A run that early stopping ends has one more line:
///
///   {"step":12,"stopped_early":true,"best_val_loss":4.125,"best_step":8}
///
/// Each time that the program ends a run, or stops it, it has a line of its goodput: the share of the
/// program's time that moved the model. Repeated steps had been done before, and were lost.
///
///   {"step":12,"goodput":0.75,"moved_s":6.0,"wall_s":8.0,"repeated_steps":4,"data_wait_share":0.001}
///
/// The share of steps' time in which a rank waited for its batch is "data_wait_share". A step's line
/// has the milliseconds, "data_wait_ms", of the rank that waited longest.
///
/// "step" is the number of steps done, as on the screen and in the names of checkpoints: the first
/// step is 1. A file without the first line is of version 1, in which the first step was 0; a run
/// that continues such a file rewrites it as version 2.
///
/// With state or activations on disk, a step's line also has "exposed_disk_ms":3.5: how long the
/// rank that waited longest for the disk did so.
///
/// With ranks in several processes over MPI, a step's line also has
/// "sent_bytes":{"within_machines":4718592,"to_other_machines":1572864}, sent by all ranks since
/// the previous line.
///
/// With several ranks a step's line also has
///
///    "exposed_comm_ms_by_axis":{"shard":0.0625,"tensor":0.125}
///
/// which divides the rank's "exposed_comm_ms" by the mesh axis that it waited for; axes with one
/// rank are omitted. The sum is less if ranks of several axes exchanged the step's statistics
/// together. If shard and context both have several ranks, all time of the ZeRO group is under
/// "shard".
///
/// and names the slowest rank:
///
///    "slowest_rank":3,"slowest_rank_ms":90.5,"median_rank_ms":50.25
///
/// Its own time is the longest: the time of the step without waits for other ranks, evaluations and
/// saves. The median is that of all ranks.
///
/// On a GPU with a table of measured matmul algorithms, a step's line has "matmul_table":"34
/// measured matmul algorithms of ..." instead of "isa".
///
/// With separate documents, a step's line also has "loss_tokens":1513, the tokens with a target;
/// with 0, the step updated nothing. With loss scaling, a step's line also has
/// "loss_scale":65536.0,"skipped":false; a skipped step has "skipped":true and "overflow", which
/// names the tensor, the element, the unit and the rank that owns the slice. A step that
/// bad_steps keeps from being applied has "skipped":true and "bad_step", the reason.
///
/// With training.z_loss_multiplier, a step's line also has "z_loss", which the gradient has in
/// addition to the loss. With a teacher, it has "teacher_divergence", the mean of kernels/teacher.h's
/// divergence; "loss" is the text's own part, without weights. With multi-token prediction, it has
/// "mtp_loss", the mean of its layers' losses, which aren't part of "loss". With metrics.log_max_attention_logit or QK-clip, it also has the step's
/// largest attention score with its layer and head, and the largest of each layer:
///
///    "max_attention_logit":12.5,"max_attention_logit_layer":1,"max_attention_logit_head":3,
///    "max_attention_logits":[9.25,12.5]
///
/// With QK-clip, also "clipped_heads", the number of query heads that it scaled, in all layers.
///
/// With a loss on preferences, a step's line has by TRL's names "rewards/chosen",
/// "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen" and
/// "logps/rejected", means over the step; with kto "kl" in place of the accuracies. "loss_tokens" are
/// then the pairs or judged answers. An evaluation's line has them with "val_" before each name.
///
/// With experts, a step's line also has "balance_loss" and "router_z_loss", which the gradient has
/// in addition to the loss, and for each layer with experts the fewest, most and mean tokens of an
/// expert and the experts without any:
///
///    "experts":[{"layer":0,"min":96,"max":160,"mean":128.0,"idle":0}]
///
/// Numbers are decimals that read back as exactly the same double, so losses are equal exactly if
/// their texts are. JSON has no NaN or infinity: a non-finite number is null, followed by e.g.
/// "loss_text":"nan" (or "inf", "-inf").
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/store/output_lock.h"
#include "core/link_bytes.h"
#include "core/memory.h"

namespace sherd::engine {

/// The version in the first line.
inline constexpr const char* kMetricsVersionKey = "metrics_version";
inline constexpr std::int64_t kMetricsVersion = 2;
/// A longer line isn't ours; a larger file isn't read.
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;
inline constexpr std::int64_t kMostMetricsBytes = std::int64_t{4} << 30;
/// Whether a line may be one of ours, by its length and nesting.
bool may_be_metrics(std::string_view line);
/// Errors   DataError with file and version if the version is unknown
void require_known_metrics(bool known, const std::string& version, const std::string& path);

/// Of a step of a model with experts.
struct ExpertMetrics {
  struct Layer {
    std::int64_t layer = 0, least = 0,
                 most = 0;  ///< tokens of the expert with fewest and with most
    double mean = 0.0;
    std::int64_t idle = 0;  ///< experts that no token chose
  };
  double balance_loss = 0.0, z_loss = 0.0;
  std::vector<Layer> layers{};
};

struct StepMetrics {
  std::int64_t step = 0;  ///< steps done, including this one; the same in all lines
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  ///< since the start of training, over all ranks
  /// With separate documents: the tokens of this step that `loss` is the mean over.
  std::optional<std::int64_t> loss_tokens{};
  double tokens_per_s = 0;
  double exposed_comm_ms = 0;  ///< the compute stream waited for communication
  /// The same by mesh axis, for axes with several ranks.
  std::vector<std::pair<std::string, double>> exposed_by_axis{};
  std::optional<double> exposed_disk_ms{};  ///< the update waited for state on disk
  std::optional<double> data_wait_ms{};     ///< of the rank that waited longest for its batches
  double comm_cpu_ms = 0;  ///< processor time that communication took from computing
  /// With several ranks: the one with the longest own time, and the median of all.
  struct Slowest {
    int rank = 0;
    double own_ms = 0, median_ms = 0;
  };
  std::optional<Slowest> slowest{};
  std::optional<LinkBytes> sent{};   ///< over MPI: bytes of tensors, by all ranks
  std::optional<double> loss_scale;  ///< with loss scaling: this step's
  bool skipped = false;              ///< with loss scaling: the gradient overflowed, no update
  std::string overflow;              ///< of a skipped step: the first non-finite gradient
  std::string bad_step{};            ///< why the step wasn't applied; empty: it was
  /// With several sources: tokens of each since the start of training.
  std::vector<std::pair<std::string, std::int64_t>> source_tokens{};
  /// With metrics.source_losses: the mean loss of each that has tokens in the step.
  std::vector<std::pair<std::string, double>> source_losses{};
  std::optional<double> z_loss{};  ///< of the output logits
  std::optional<double> teacher_divergence{};
  std::optional<double> mtp_loss{};
  std::vector<std::pair<std::string, double>> preference{};  ///< with a loss on answers
  /// The largest attention score, its layer and head, and the largest of each layer.
  struct AttentionLogits {
    double largest = 0;
    std::int64_t layer = 0, head = 0;
    std::vector<double> of_layers{};
  };
  std::optional<AttentionLogits> attention_logits{};
  std::optional<std::int64_t> clipped_heads{};  ///< with QK-clip
  std::optional<ExpertMetrics> experts{};
  std::string isa;               ///< on a CPU: the instruction set of its matmuls (kernels/isa.h)
  std::string matmul_table{};    ///< on a GPU with one: measured algorithms (kernels/libraries.h)
  BytesByCategory peak_bytes{};  ///< each category's own maximum; only those above 0 are written
  std::int64_t total_peak_bytes = 0;
};

struct EvaluationMetrics {
  std::int64_t step = 0;
  double val_loss = 0;
  std::optional<double> val_loss_20_batches{};
  std::int64_t num_tokens = 0;                         ///< val_loss is the mean over them
  std::optional<double> perplexity{};                  ///< of `sherd eval`
  std::optional<double> bits_per_byte{};               ///< none if tokens have no text
  std::vector<std::pair<std::string, double>> sets{};  ///< losses of several validation sets
  std::optional<double> val_loss_average{};            ///< of the average of the weights
  std::vector<std::pair<std::string, double>> bits_of_sets{};  ///< bits per byte, as `sets`
  struct Task {
    std::string name;
    double acc = 0, acc_norm = 0;
    std::int64_t questions = 0;
  };
  std::vector<Task> tasks{};
  std::vector<std::pair<std::string, double>> preference{};  ///< of the main set
};

/// A committed checkpoint. Its line is written when the commit is known, possibly some steps later.
struct SaveMetrics {
  std::int64_t saved = 0;  ///< steps done in the checkpoint
  std::int64_t bytes = 0;  ///< of one rank's state
  double write_mib_per_s = 0;
  double stalled_ms = 0;  ///< time that an update waited until its slice was copied
  double save_s = 0;      ///< from the beginning of the save to its last fsync
};

/// The validation loss didn't improve, so the run ends before its last step.
struct EarlyStopMetrics {
  std::int64_t step = 0;
  double best_val_loss = 0;
  std::int64_t best_step = 0;
};

/// How much of the program's time moved the model.
/// The run has gone back to a checkpoint because of bad steps.
struct RewindMetrics {
  std::int64_t step = 0;          ///< of the checkpoint
  std::int64_t rewound_from = 0;  ///< steps done before
  std::int64_t skipped_data_steps = 0;
};

struct EndMetrics {
  std::int64_t step = 0;
  double moved_s = 0;  ///< in steps that updated the model, and hadn't been done before
  double wall_s = 0;  ///< since the program began: loading, saves, evaluations, repeated steps, too
  std::int64_t repeated_steps = 0;
  double data_wait_share = 0;  ///< of the time of all steps

  double goodput() const { return wall_s > 0 ? moved_s / wall_s : 0; }
};

/// One line each, without the newline.
std::string to_json(const StepMetrics& metrics);
std::string to_json(const SaveMetrics& metrics);
std::string to_json(const EvaluationMetrics& metrics);
std::string to_json(const EarlyStopMetrics& metrics);
std::string to_json(const EndMetrics& metrics);
std::string to_json(const RewindMetrics& metrics);

/// Removes the lines that a resumed run will write again, and a torn last line. Keeps the lines of
/// the first `num_steps` steps, without the evaluation after them if it is repeated
/// (`evaluates_anew`), and converts them to the current version. Atomic and durable; doesn't create
/// a missing file. Returns the last step that the file had; 0: none.
/// Errors   DataError naming the file, also if it is a link, a pipe or a device, or of a later
///          version than this program's.
std::int64_t keep_metrics_of(const std::string& path, std::int64_t num_steps,
                             bool evaluates_anew = false,
                             checkpoint::Disk& disk = checkpoint::posix_disk());

struct MetricsOptions {
  checkpoint::Disk* disk = &checkpoint::posix_disk();
  /// Lock of the file's folder; checked before each write.
  const checkpoint::OutputLock* lock = nullptr;
  std::function<void(const std::string&)> notice{};  ///< called if the file was removed
};

/// Appends whole lines, each in one write (the first together with the version line), so neither a
/// reader nor a kill leaves half a line. If the file is removed during the run, it is created
/// again; if it is replaced, the new file is continued. Both are reported to `notice`.
/// Errors   DataError naming the file if it can't be opened or written (on a full disk, a partial
///          line is removed), or isn't a plain file with only this name; LockLost.
class MetricsWriter {
 public:
  enum class Existing { kReplace, kContinue };  ///< what to do with an earlier run's lines

  MetricsWriter(std::string path, Existing existing, MetricsOptions options = {});

  void write(const StepMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const EvaluationMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const SaveMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const EarlyStopMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const RewindMetrics& metrics) { write_line(to_json(metrics)); }
  void write(const EndMetrics& metrics) { write_line(to_json(metrics)); }

  /// A save may fill the disk temporarily. So lines that don't fit wait in memory, up to a MiB, and
  /// are written with the next line or by sync().
  void wait_for_room(bool wait) { waits_for_room_ = wait; }

  /// Makes everything written so far durable, including the file's name.
  /// Errors   as write.
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
