#include "engine/report/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include "core/error.h"

namespace sherd::engine {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8u;
}

template <class Number>
std::string little_endian(Number number) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// Fields of a protocol buffer's message: a key of field number and form, then the content.
enum class Form : std::uint32_t { kVarint = 0, kEightBytes = 1, kLength = 2, kFourBytes = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(std::uint32_t field, Form form) {
  return varint(field << 3 | static_cast<std::uint32_t>(form));
}
std::string whole(std::uint32_t field, std::int64_t value) {
  return key(field, Form::kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string nested(std::uint32_t field, std::string_view content) {
  return key(field, Form::kLength) + varint(content.size()) + std::string(content);
}

// Event: wall_time 1, step 2, file_version 3, summary 5, session_log 7.
std::string event(std::int64_t step, std::string_view what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return key(1, Form::kEightBytes) + little_endian(now.count()) +
         (step == 0 ? "" : whole(2, step)) + std::string(what);
}

// Summary: value 1. Summary.Value: tag 1, simple_value 2, tensor 8, metadata 9.
std::string scalar(const std::string& tag, double value) {
  return nested(
      1, nested(1, tag) + key(2, Form::kFourBytes) + little_endian(static_cast<float>(value)));
}

// A tensor of one string, which metadata hand to TensorBoard's text plugin. SummaryMetadata:
// plugin_data 1 { plugin_name 1 }. TensorProto: dtype 1 (7: string), tensor_shape 2
// { dim 2 { size 1 } }, string_val 8.
std::string text_value(const std::string& tag, const std::string& text) {
  const std::string metadata = nested(1, nested(1, "text"));
  const std::string tensor = whole(1, 7) + nested(2, nested(2, whole(1, 1))) + nested(8, text);
  return nested(1, nested(1, tag) + nested(8, tensor) + nested(9, metadata));
}

std::string new_name(checkpoint::Disk& disk, const std::string& folder) {
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (int number = 0;; ++number) {
    const std::string path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, seconds,
                                         host.data(), ::getpid(), number);
    if (!checkpoint::exists(disk, path)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

EventFile::EventFile(checkpoint::Disk& disk, const std::string& folder,
                     const checkpoint::OutputLock& lock, std::int64_t steps_done, Notice notice)
    : disk_(disk),
      folder_(folder),
      lock_(lock),
      steps_done_(steps_done),
      notice_(std::move(notice)) {}

void EventFile::begin() {
  began_ = true;
  try {
    lock_.check();
    checkpoint::make_directory(disk_, folder_);
    const auto found = checkpoint::status_of(disk_, folder_);
    if (!found || found->kind != checkpoint::FileStatus::Kind::kDirectory) {
      notice_(fmt::format("no curves for TensorBoard: {} is no folder", folder_));
      return;
    }
    file_.emplace(disk_, new_name(disk_, folder_), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  } catch (const checkpoint::DiskError& error) {
    notice_(fmt::format("no curves for TensorBoard: {}", error.what()));
    return;
  }
  append(event(0, nested(3, "brain.Event:2")));
  append(event(steps_done_ + 1, nested(7, whole(1, 1))));  // SessionLog: status 1, START
}

void EventFile::write(const StepMetrics& metrics) {
  Scalars scalars = {{"train/loss", metrics.loss},
                     {"train/grad_norm", metrics.grad_norm},
                     {"train/lr", metrics.lr},
                     {"train/tokens", static_cast<double>(metrics.tokens)},
                     {"speed/tokens_per_s", metrics.tokens_per_s},
                     {"time/exposed_comm_ms", metrics.exposed_comm_ms},
                     {"memory/peak_bytes", static_cast<double>(metrics.total_peak_bytes)}};
  for (const auto& [axis, milliseconds] : metrics.exposed_by_axis) {
    scalars.emplace_back("time/exposed_comm_ms/" + axis, milliseconds);
  }
  for (const auto& [name, loss] : metrics.source_losses) {
    scalars.emplace_back("train/loss/" + name, loss);
  }
  if (metrics.z_loss) scalars.emplace_back("train/z_loss", *metrics.z_loss);
  if (metrics.teacher_divergence) {
    scalars.emplace_back("train/teacher_divergence", *metrics.teacher_divergence);
  }
  if (metrics.mtp_loss) scalars.emplace_back("train/mtp_loss", *metrics.mtp_loss);
  for (const auto& [name, value] : metrics.preference) scalars.emplace_back("train/" + name, value);
  if (const auto& logits = metrics.attention_logits) {
    scalars.emplace_back("train/max_attention_logit", logits->largest);
  }
  if (metrics.clipped_heads) {
    scalars.emplace_back("train/clipped_heads", static_cast<double>(*metrics.clipped_heads));
  }
  if (metrics.experts) {
    scalars.emplace_back("train/balance_loss", metrics.experts->balance_loss);
    scalars.emplace_back("train/router_z_loss", metrics.experts->z_loss);
    for (const ExpertMetrics::Layer& layer : metrics.experts->layers) {
      const std::string name = "experts/layer." + std::to_string(layer.layer);
      scalars.emplace_back(name + "/max_over_mean",
                           layer.mean > 0.0 ? static_cast<double>(layer.most) / layer.mean : 0.0);
      scalars.emplace_back(name + "/min", static_cast<double>(layer.least));
      scalars.emplace_back(name + "/idle", static_cast<double>(layer.idle));
    }
  }
  if (metrics.loss_scale) scalars.emplace_back("train/loss_scale", *metrics.loss_scale);
  write_scalars(metrics.step, scalars);
}

void EventFile::write(const EvaluationMetrics& metrics) {
  write_scalars(metrics.step, {{"val/loss", metrics.val_loss}});
  if (metrics.val_loss_average) {
    write_scalars(metrics.step, {{"val/loss_average", *metrics.val_loss_average}});
  }
  for (const auto& [name, value] : metrics.preference) {
    write_scalars(metrics.step, {{"val/" + name, value}});
  }
  for (const auto& [name, loss] : metrics.sets) {
    write_scalars(metrics.step, {{"val/loss/" + name, loss}});
  }
  if (metrics.bits_per_byte) {
    write_scalars(metrics.step, {{"val/bits_per_byte", *metrics.bits_per_byte}});
  }
  for (const auto& [name, bits] : metrics.bits_of_sets) {
    write_scalars(metrics.step, {{"val/bits_per_byte/" + name, bits}});
  }
  for (const EvaluationMetrics::Task& task : metrics.tasks) {
    write_scalars(metrics.step, {{"task/" + task.name + "/acc", task.acc},
                                 {"task/" + task.name + "/acc_norm", task.acc_norm}});
  }
}

void EventFile::write_text(std::int64_t step, const std::string& tag, const std::string& text) {
  write_event(event(step, nested(5, text_value(tag, text))));
}

void EventFile::write_scalars(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) summary += scalar(tag, value);
  write_event(event(step, nested(5, summary)));
}

void EventFile::write_event(std::string_view event) {
  if (!began_) begin();
  append(event);
}

void EventFile::append(std::string_view event) {
  if (!file_) return;
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  const std::string record = length + little_endian(masked(crc32c(length))) + std::string(event) +
                             little_endian(masked(crc32c(event)));
  try {
    lock_.check();
    file_->write_at(record.data(), std::ssize(record), end_);
    end_ += std::ssize(record);
  } catch (const checkpoint::DiskError& error) {
    notice_(fmt::format("no more curves for TensorBoard: {}", error.what()));
    file_.reset();
  }
}

}  // namespace sherd::engine
