#include "engine/report/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_bounds.h"

namespace sherd::engine {
namespace {

using checkpoint::DiskError;
using Json = nlohmann::ordered_json;

std::string version_line() {
  return fmt::format("{{\"{}\":{}}}\n", kMetricsVersionKey, kMetricsVersion);
}

void put(Json& line, const std::string& key, double value) {
  line[key] = value;  // the library writes what isn't finite as null
  if (std::isfinite(value)) return;
  line[key + "_text"] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Names of files may have other bytes than UTF-8.
std::string printed_line(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_full(const DiskError& error) {
  return error.error_number == ENOSPC || error.error_number == EDQUOT;
}

}  // namespace

bool may_be_metrics(std::string_view line) try {
  constexpr int kMostLevels = 16;
  if (line.size() > kMostLineBytes) return false;
  check_json_bounds(line, "", {.depth = kMostLevels});
  return true;
} catch (const DataError&) {
  return false;
}

void require_known_metrics(bool known, const std::string& version, const std::string& path) {
  constexpr std::size_t kMostShown = 60;
  if (known) return;
  throw DataError(
      "{}: has metrics of version {}, and this program knows 1 and {}; continue with the "
      "program "
      "that wrote it, or move the file away.",
      path, version.substr(0, kMostShown), kMetricsVersion);
}

std::string to_json(const StepMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  put(line, "loss", metrics.loss);
  put(line, "grad_norm", metrics.grad_norm);
  put(line, "lr", metrics.lr);
  line["tokens"] = metrics.tokens;
  if (metrics.loss_tokens) line["loss_tokens"] = *metrics.loss_tokens;
  put(line, "tokens_per_s", metrics.tokens_per_s);
  put(line, "exposed_comm_ms", metrics.exposed_comm_ms);
  for (const auto& [axis, milliseconds] : metrics.exposed_by_axis) {
    line["exposed_comm_ms_by_axis"][axis] = milliseconds;
  }
  if (metrics.exposed_disk_ms) put(line, "exposed_disk_ms", *metrics.exposed_disk_ms);
  if (metrics.data_wait_ms) put(line, "data_wait_ms", *metrics.data_wait_ms);
  put(line, "comm_cpu_ms", metrics.comm_cpu_ms);
  if (metrics.slowest) {
    line["slowest_rank"] = metrics.slowest->rank;
    put(line, "slowest_rank_ms", metrics.slowest->own_ms);
    put(line, "median_rank_ms", metrics.slowest->median_ms);
  }
  if (metrics.sent) {
    line["sent_bytes"] = {{"within_machines", metrics.sent->within},
                          {"to_other_machines", metrics.sent->across}};
  }
  if (metrics.loss_scale) {
    put(line, "loss_scale", *metrics.loss_scale);
    line["skipped"] = metrics.skipped;
    if (metrics.skipped) line["overflow"] = metrics.overflow;
  }
  if (!metrics.bad_step.empty()) {
    line["skipped"] = true;
    line["bad_step"] = metrics.bad_step;
  }
  for (const auto& [name, tokens] : metrics.source_tokens) line["source_tokens"][name] = tokens;
  for (const auto& [name, loss] : metrics.source_losses) put(line, "loss/" + name, loss);
  if (metrics.z_loss) put(line, "z_loss", *metrics.z_loss);
  if (metrics.teacher_divergence) put(line, "teacher_divergence", *metrics.teacher_divergence);
  if (metrics.mtp_loss) put(line, "mtp_loss", *metrics.mtp_loss);
  for (const auto& [name, value] : metrics.preference) put(line, name, value);
  if (const auto& logits = metrics.attention_logits) {
    put(line, "max_attention_logit", logits->largest);
    line["max_attention_logit_layer"] = logits->layer;
    line["max_attention_logit_head"] = logits->head;
    line["max_attention_logits"] = logits->of_layers;
  }
  if (metrics.clipped_heads) line["clipped_heads"] = *metrics.clipped_heads;
  if (metrics.experts) {
    put(line, "balance_loss", metrics.experts->balance_loss);
    put(line, "router_z_loss", metrics.experts->z_loss);
    for (const ExpertMetrics::Layer& layer : metrics.experts->layers) {
      line["experts"].push_back({{"layer", layer.layer},
                                 {"min", layer.least},
                                 {"max", layer.most},
                                 {"mean", layer.mean},
                                 {"idle", layer.idle}});
    }
  }
  if (!metrics.isa.empty()) line["isa"] = metrics.isa;
  if (!metrics.matmul_table.empty()) line["matmul_table"] = metrics.matmul_table;
  Json& peak = line["peak_bytes"];
  for (int category = 0; category < kNumCategories; ++category) {
    const std::int64_t bytes = metrics.peak_bytes[static_cast<std::size_t>(category)];
    if (bytes > 0) peak[std::string(name_of(static_cast<Category>(category)))] = bytes;
  }
  peak["total"] = metrics.total_peak_bytes;
  return printed_line(line);
}

std::string to_json(const EvaluationMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  put(line, "val_loss", metrics.val_loss);
  if (metrics.val_loss_20_batches) put(line, "val_loss_20_batches", *metrics.val_loss_20_batches);
  line["num_tokens"] = metrics.num_tokens;
  if (metrics.perplexity) put(line, "perplexity", *metrics.perplexity);
  if (metrics.bits_per_byte) put(line, "bits_per_byte", *metrics.bits_per_byte);
  if (metrics.val_loss_average) put(line, "val_loss_average", *metrics.val_loss_average);
  for (const auto& [name, loss] : metrics.sets) put(line, "val_loss/" + name, loss);
  for (const auto& [name, bits] : metrics.bits_of_sets) put(line, "bits_per_byte/" + name, bits);
  for (const EvaluationMetrics::Task& task : metrics.tasks) {
    put(line, "task/" + task.name + "/acc", task.acc);
    put(line, "task/" + task.name + "/acc_norm", task.acc_norm);
    line["task/" + task.name + "/questions"] = task.questions;
  }
  for (const auto& [name, value] : metrics.preference) put(line, "val_" + name, value);
  return printed_line(line);
}

std::string to_json(const EarlyStopMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  line["stopped_early"] = true;
  put(line, "best_val_loss", metrics.best_val_loss);
  line["best_step"] = metrics.best_step;
  return printed_line(line);
}

std::string to_json(const RewindMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  line["rewound_from"] = metrics.rewound_from;
  line["skipped_data_steps"] = metrics.skipped_data_steps;
  return printed_line(line);
}

std::string to_json(const EndMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  put(line, "goodput", metrics.goodput());
  put(line, "moved_s", metrics.moved_s);
  put(line, "wall_s", metrics.wall_s);
  line["repeated_steps"] = metrics.repeated_steps;
  put(line, "data_wait_share", metrics.data_wait_share);
  return printed_line(line);
}

std::string to_json(const SaveMetrics& metrics) {
  Json line;
  line["step"] = metrics.saved;
  line["saved"] = metrics.saved;
  line["bytes"] = metrics.bytes;
  put(line, "write_mib_per_s", metrics.write_mib_per_s);
  put(line, "stalled_ms", metrics.stalled_ms);
  put(line, "save_s", metrics.save_s);
  return printed_line(line);
}

namespace {

/// The lines of a file that are kept, converted to the current version.
class KeptLines {
 public:
  KeptLines(const std::string& path, std::int64_t num_steps, bool evaluates_anew)
      : path_(path), num_steps_(num_steps), evaluates_anew_(evaluates_anew) {}

  void add(std::string_view line) {
    if (!may_be_metrics(line)) return;
    Json parsed = Json::parse(line, nullptr, false);
    if (!parsed.is_object()) return;
    if (const auto found = parsed.find(kMetricsVersionKey); found != parsed.end())
      read_version(*found);
    const auto step = parsed.find("step");
    if (step == parsed.end() || !step->is_number_integer()) return;
    const std::int64_t done = step->get<std::int64_t>() + (version_ == 1 ? 1 : 0);
    if (parsed.contains("loss")) last_ = std::max(last_, done);
    // What a program has reported at its end stays true.
    if (done > num_steps_ && !parsed.contains("goodput")) return;
    if (evaluates_anew_ && done == num_steps_ && parsed.contains("val_loss")) return;
    if (text_.empty()) text_ = version_line();
    if (version_ == kMetricsVersion) {
      text_.append(line).push_back('\n');
    } else {
      *step = done;
      text_ += parsed.dump() + "\n";
    }
  }
  const std::string& text() const { return text_; }
  std::int64_t last() const { return last_; }

 private:
  void read_version(const Json& version) {
    require_known_metrics(version == kMetricsVersion, version.dump(-1, ' ', true), path_);
    version_ = kMetricsVersion;
  }

  const std::string& path_;
  std::int64_t num_steps_;
  bool evaluates_anew_;
  std::int64_t version_ = 1;
  std::int64_t last_ = 0;  ///< step of the file
  std::string text_;
};

}  // namespace

std::int64_t keep_metrics_of(const std::string& path, std::int64_t num_steps, bool evaluates_anew,
                             checkpoint::Disk& disk) {
  if (!checkpoint::exists(disk, path)) return 0;
  KeptLines kept(path, num_steps, evaluates_anew);
  const std::string text = checkpoint::read_file(disk, path, kMostMetricsBytes);
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    kept.add(std::string_view(text).substr(begin, end - begin));
  }  // what has no newline is torn
  try {
    checkpoint::replace_file(disk, path, kept.text());
  } catch (const DiskError& error) {
    throw DataError("{}: can't be cut back to step {} ({})", path, num_steps,
                    std::strerror(error.error_number));
  }
  return kept.last();
}

MetricsWriter::MetricsWriter(std::string path, Existing existing, MetricsOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  open();
  if (existing == Existing::kReplace) file_.truncate(0);
  const std::int64_t size = file_.status().bytes;
  char last = '\n';
  if (size > 0) file_.read_at(&last, 1, size - 1);
  if (last != '\n') write_line("");  // a line cut off by a crash doesn't take the next one with it
}

void MetricsWriter::open() {
  try {
    // Readable too, to see how an earlier run's file ends.
    file_ = checkpoint::open_plain(*options_.disk, path_, O_RDWR | O_CREAT);
    new_name_ = true;
  } catch (const DiskError& error) {
    const char* advice = is_full(error) ? "make room or set another run.output_dir"
                                        : "set run.output_dir to a folder that this user may write";
    throw DataError("{}: can't be opened for writing ({}); {}.", path_,
                    std::strerror(error.error_number), advice);
  }
}

void MetricsWriter::sync() {
  write_waiting(false);
  try {
    file_.sync();
    if (new_name_) checkpoint::sync_directory(*options_.disk, checkpoint::folder_of(path_));
    new_name_ = false;
  } catch (const DiskError& error) {
    throw DataError("{}: can't be made durable ({})", path_, std::strerror(error.error_number));
  }
}

void MetricsWriter::write_line(std::string line) {
  waiting_ += line + "\n";
  write_waiting(waits_for_room_);
}

// Lines of a removed file are lost, but later lines needn't be.
void MetricsWriter::open_again_if_gone() {
  const std::optional<checkpoint::FileStatus> found = checkpoint::status_of(*options_.disk, path_);
  if (found && found->same_file(file_.status())) return;
  open();
  if (options_.notice) {
    options_.notice(fmt::format("{} was {} during the run; further lines go to {}", path_,
                                found ? "replaced" : "removed",
                                found ? "the new file of that name" : "a new file"));
  }
}

void MetricsWriter::write_waiting(bool may_stay) {
  if (waiting_.empty()) return;
  if (options_.lock) options_.lock->check();
  open_again_if_gone();
  const std::int64_t end = file_.status().bytes;
  const std::string lines = (end == 0 ? version_line() : "") + waiting_;
  try {
    file_.write_at(lines.data(), std::ssize(lines), end);
  } catch (const DiskError& error) {
    bool torn = file_.status().bytes > end;
    try {
      if (torn) file_.truncate(end);
      torn = false;
    } catch (const DiskError&) {
    }
    if (may_stay && is_full(error) && !torn && waiting_.size() < (1u << 20)) return;
    waiting_.clear();
    throw DataError("{}: can't be written ({}){}; make room or set another run.output_dir.", path_,
                    std::strerror(error.error_number), torn ? ", its last line is cut short" : "");
  }
  waiting_.clear();
}

}  // namespace sherd::engine
