#include "engine/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& line, const std::string& key, double value) {
  line[key] = value;  // the library writes what isn't finite as null
  if (std::isfinite(value)) return;
  line[key + "_text"] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

std::string to_json(const StepMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  put(line, "loss", metrics.loss);
  put(line, "grad_norm", metrics.grad_norm);
  put(line, "lr", metrics.lr);
  line["tokens"] = metrics.tokens;
  put(line, "tokens_per_s", metrics.tokens_per_s);
  put(line, "exposed_comm_ms", metrics.exposed_comm_ms);
  put(line, "comm_cpu_ms", metrics.comm_cpu_ms);
  if (metrics.loss_scale) {
    put(line, "loss_scale", *metrics.loss_scale);
    line["skipped"] = metrics.skipped;
    if (metrics.skipped) line["overflow"] = metrics.overflow;
  }
  Json& peak = line["peak_bytes"];
  for (int category = 0; category < kNumCategories; ++category) {
    const std::int64_t bytes = metrics.peak_bytes[static_cast<std::size_t>(category)];
    if (bytes > 0) peak[std::string(name_of(static_cast<Category>(category)))] = bytes;
  }
  peak["total"] = metrics.total_peak_bytes;
  return line.dump();
}

std::string to_json(const EvaluationMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  put(line, "val_loss", metrics.val_loss);
  if (metrics.val_loss_20_batches) put(line, "val_loss_20_batches", *metrics.val_loss_20_batches);
  line["num_tokens"] = metrics.num_tokens;
  return line.dump();
}

std::string to_json(const SaveMetrics& metrics) {
  Json line;
  line["step"] = metrics.saved - 1;
  line["saved"] = metrics.saved;
  line["bytes"] = metrics.bytes;
  put(line, "write_mib_per_s", metrics.write_mib_per_s);
  put(line, "stalled_ms", metrics.stalled_ms);
  put(line, "save_s", metrics.save_s);
  return line.dump();
}

void keep_metrics_before(const std::string& path, std::int64_t step) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return;
  std::string kept;
  for (std::string line; std::getline(in, line) && !in.eof();) {  // at eof: no newline, torn
    const Json parsed = Json::parse(line, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("step")) continue;
    if (parsed.at("step").is_number_integer() && parsed.at("step").get<std::int64_t>() < step) {
      kept += line + "\n";
    }
  }
  const std::string beside = path + ".tmp";
  std::ofstream out(beside, std::ios::binary | std::ios::trunc);
  out << kept;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(beside, path, error);
  if (!out || error) {
    throw DataError("{}: can't be cut back to step {} ({})", path, step,
                    error ? error.message() : std::strerror(errno));
  }
}

MetricsWriter::MetricsWriter(std::string path, Existing existing) : path_(std::move(path)) {
  const int replace = existing == Existing::kReplace ? O_TRUNC : 0;
  // Readable too, to see how an earlier run's file ends.
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | replace, 0644);
  if (file_ < 0) {
    throw DataError(
        "{}: can't be opened for writing ({}); set run.output_dir to a folder that this "
        "user may write.",
        path_, std::strerror(errno));
  }
  const off_t size = ::lseek(file_, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(file_, &last, 1, size - 1) == 1 && last != '\n') {
    write_line("");  // a line cut off by a crash doesn't take the next one with it
  }
}

MetricsWriter::~MetricsWriter() {
  ::close(file_);
}

void MetricsWriter::sync() {
  write_waiting(false);
  if (::fsync(file_) == 0) return;
  throw DataError("{}: can't be made durable ({})", path_, std::strerror(errno));
}

void MetricsWriter::write_line(std::string line) {
  waiting_ += line + "\n";
  write_waiting(waits_for_room_);
}

void MetricsWriter::write_waiting(bool may_stay) {
  struct stat before {};
  const bool known = ::fstat(file_, &before) == 0;
  std::size_t written = 0;
  while (written < waiting_.size()) {
    const ssize_t count = ::write(file_, waiting_.data() + written, waiting_.size() - written);
    if (count > 0) {
      written += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      const int reason = count == 0 ? ENOSPC : errno;
      const bool torn = written > 0 && !(known && ::ftruncate(file_, before.st_size) == 0);
      if (may_stay && reason == ENOSPC && !torn && waiting_.size() < (1u << 20)) return;
      waiting_.clear();
      throw DataError("{}: can't be written ({}){}; make room or set another run.output_dir.",
                      path_, std::strerror(reason), torn ? ", its last line is cut short" : "");
    }
  }
  waiting_.clear();
}

}  // namespace sherd::engine
