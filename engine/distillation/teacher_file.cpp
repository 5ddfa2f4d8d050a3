#include "engine/distillation/teacher_file.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "core/shape_text.h"
#include "engine/data/shuffle.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kWord = 4, kHash = 8;

std::uint64_t hash_of_row(std::span<const std::int32_t> ids, std::span<const float> values) {
  return data::hash_of(XXH3_64bits(ids.data(), ids.size_bytes()),
                       XXH3_64bits(values.data(), values.size_bytes()));
}

std::string header_of(const TeacherShape& shape) {
  nlohmann::ordered_json header;
  std::int64_t end = 0;
  const auto add = [&](const char* name, const char* type, const std::vector<std::int64_t>& sizes,
                       std::int64_t bytes) {
    for (const std::int64_t size : sizes) bytes *= size;
    header[name] = {{"dtype", type}, {"shape", sizes}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  add("row_hashes", "U64", {shape.rows}, kHash);
  add("data", "U64", {1}, kHash);
  add("ids", "I32", {shape.rows, shape.seq_length, shape.top}, kWord);
  add("log_probabilities", "F32", {shape.rows, shape.seq_length, shape.top}, kWord);
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

std::string temporary(const std::string& path) {
  return path + ".tmp";
}

}  // namespace

std::uint64_t hash_of_samples(const data::Batcher& batches) {
  const data::BatchShape& shape = batches.shape();
  // Windows are numbered alike for any size of a step.
  bool steps_count = batches.stages().size() > 1;
  for (int i = 0; i < batches.num_sources(); ++i) {
    steps_count = steps_count || batches.source(i).dataset->separate_documents();
  }
  std::uint64_t hash = data::hash_of(shape.seed, shape.seq_length, static_cast<int>(shape.packing),
                                     steps_count ? shape.global_batch_size() : 0);
  if (batches.balances()) {
    hash = data::hash_of(hash, shape.parts().micro_batch_size, shape.parts().num_replicas);
  }
  for (const data::StageFingerprint& stage : batches.fingerprints()) {
    hash = data::hash_of(hash, stage.first_step, stage.hash);
  }
  return hash;
}

TeacherWriter::TeacherWriter(checkpoint::Disk& disk, const std::string& path,
                             const TeacherShape& shape)
    : unfinished_{disk, temporary(path)},
      path_(path),
      shape_(shape),
      file_(disk, temporary(path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC),
      row_hashes_(static_cast<std::size_t>(shape.rows)) {
  const std::string header = header_of(shape);
  begin_ = std::ssize(header);
  file_.allocate(begin_ + kHash * (shape.rows + 1) + 2 * kWord * shape.rows * shape.of_row());
  file_.write_at(header.data(), begin_, 0);
  file_.write_at(&shape_.data, kHash, begin_ + kHash * shape_.rows);
}

void TeacherWriter::write(std::int64_t row, std::span<const std::int32_t> ids,
                          std::span<const float> log_probabilities) {
  SHERD_CHECK(row >= 0 && row < shape_.rows && std::ssize(ids) == shape_.of_row() &&
                  std::ssize(log_probabilities) == shape_.of_row(),
              "row {} of {}, {} tokens of {}", row, shape_.rows, ids.size(), shape_.of_row());
  const std::int64_t bytes = kWord * shape_.of_row();
  const std::int64_t tensors = begin_ + kHash * (shape_.rows + 1);
  file_.write_at(ids.data(), bytes, tensors + row * bytes);
  file_.write_at(log_probabilities.data(), bytes, tensors + (shape_.rows + row) * bytes);
  row_hashes_[static_cast<std::size_t>(row)] = hash_of_row(ids, log_probabilities);
}

void TeacherWriter::finish() {
  file_.write_at(row_hashes_.data(), kHash * shape_.rows, begin_);
  file_.sync();
  file_.close();
  checkpoint::rename_over(unfinished_.disk, unfinished_.path, path_);
  checkpoint::sync_directory(unfinished_.disk, checkpoint::folder_of(path_));
}

// Finds nothing once the file has its name.
TeacherWriter::Unfinished::~Unfinished() {
  try {
    checkpoint::remove_file(disk, path);
  } catch (const Error&) {  // another error is on its way
  }
}

namespace {

// The file's tensors, in this order.
std::array<checkpoint::SafetensorsTensor, 4> tensors_of(
    const checkpoint::SafetensorsHeader& header) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kTensors = {
      {{"row_hashes", "U64"}, {"data", "U64"}, {"ids", "I32"}, {"log_probabilities", "F32"}}};
  std::array<checkpoint::SafetensorsTensor, 4> found;
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const auto& [name, type] = kTensors[i];
    const auto tensor =
        std::ranges::find(header.tensors, name, &checkpoint::SafetensorsTensor::name);
    if (tensor == header.tensors.end() || tensor->type != type) {
      throw DataError(
          "{}: has no tensor \"{}\" of type {}, so it isn't a teacher's file; `sherd score "
          "--save-top` writes one.",
          header.path, name, type);
    }
    found[i] = *tensor;
  }
  const auto& [hashes, data, ids, values] = found;
  if (ids.shape.size() != 3 || ids.shape != values.shape || data.bytes != kHash ||
      hashes.shape != std::vector{ids.shape[0]}) {
    throw DataError("{}: the shapes of its tensors, {} and {}, don't fit together.", header.path,
                    shape_text(ids.shape), shape_text(values.shape));
  }
  return found;
}

}  // namespace

TeacherFile::TeacherFile(checkpoint::Disk& disk, const std::string& path, const TeacherShape& shape,
                         const kernels::TeacherForm& form, std::int64_t vocab_size)
    : path_(path), form_(form), vocab_size_(vocab_size) {
  if (!checkpoint::exists(disk, path)) {
    throw DataError(
        "{}: there is no such file; `sherd score TEACHER --save-top {} --student RECIPE` writes "
        "what "
        "distillation.teacher names.",
        path, form.top);
  }
  const checkpoint::SafetensorsHeader header = checkpoint::read_safetensors_header(disk, path);
  const auto [hashes, data, ids, values] = tensors_of(header);
  file_ = checkpoint::open_followed(disk, path);
  shape_ = {ids.shape[0], ids.shape[1], ids.shape[2], 0};
  file_.read_at(&shape_.data, kHash, data.begin);
  if (shape_.data != shape.data || shape_.seq_length != shape.seq_length) {
    throw DataError(
        "{}: the teacher has read other samples than this run trains on (other data, "
        "training.seq_length or seed; with separate documents also other batches); run `sherd "
        "score --save-top` with this recipe.",
        path);
  }
  if (shape_.rows < shape.rows) {
    throw DataError(
        "{}: has {} samples, and the run's steps need {}; run `sherd score --save-top` with this "
        "recipe.",
        path, shape_.rows, shape.rows);
  }
  if (shape_.top < form.top) {
    throw DataError(
        "{}: has {} tokens for each token, and distillation.top_k is {}; lower it, or "
        "run `sherd score --save-top {}`.",
        path, shape_.top, form.top, form.top);
  }
  ids_begin_ = ids.begin;
  log_probabilities_begin_ = values.begin;
  row_hashes_.resize(static_cast<std::size_t>(shape_.rows));
  file_.read_at(row_hashes_.data(), hashes.bytes, hashes.begin);
  hash_ = data::hash_of(shape_.data, shape_.rows, shape_.top,
                        XXH3_64bits(row_hashes_.data(), row_hashes_.size() * sizeof(hash_)));
  if (hash_ == 0) hash_ = 1;
}

namespace {

// Softmax of the log-probabilities over the temperature.
void write_probabilities(std::span<const float> log_probabilities, float temperature, float* out) {
  double sum = 0.0;
  const double most = double{log_probabilities[0]};
  const auto weight = [&](float value) {
    return std::exp((double{value} - most) / double{temperature});
  };
  for (const float value : log_probabilities) sum += weight(value);
  for (const float value : log_probabilities) *out++ = static_cast<float>(weight(value) / sum);
}

}  // namespace

void TeacherFile::fill(std::int64_t first, std::int64_t count, const data::Batch& batch) const {
  const auto of_row = static_cast<std::size_t>(shape_.of_row());
  std::vector<std::int32_t> ids(of_row);
  std::vector<float> values(of_row);
  auto* ids_to = batch.teacher_ids.as<std::int32_t>();
  auto* probabilities_to = batch.teacher_probabilities.as<float>();
  const auto* targets = batch.targets.as<std::int32_t>();
  const std::int64_t bytes = kWord * shape_.of_row();
  for (std::int64_t row = first; row < first + count; ++row) {
    if (row >= shape_.rows) {
      throw DataError("{}: has {} samples, and sample {} is asked for.", path_, shape_.rows, row);
    }
    file_.read_at(ids.data(), bytes, ids_begin_ + row * bytes);
    file_.read_at(values.data(), bytes, log_probabilities_begin_ + row * bytes);
    if (hash_of_row(ids, values) != row_hashes_[static_cast<std::size_t>(row)]) {
      throw DataError("{}: sample {} is damaged; run `sherd score --save-top` again.", path_, row);
    }
    for (std::int64_t token = 0; token < shape_.seq_length; ++token) {
      const auto own = std::span(ids).subspan(static_cast<std::size_t>(token * shape_.top),
                                              static_cast<std::size_t>(form_.top));
      const auto of = std::span<const float>(values).subspan(
          static_cast<std::size_t>(token * shape_.top), static_cast<std::size_t>(form_.top));
      const bool has_target = *targets++ != data::kNoTarget;
      for (const std::int32_t id : own) {
        if (has_target && (id < 0 || id >= vocab_size_)) {
          throw DataError("{}: token {} of sample {} has id {}, and the vocabulary {} ids.", path_,
                          token, row, id, vocab_size_);
        }
      }
      ids_to = std::ranges::copy(own, ids_to).out;
      write_probabilities(of, form_.temperature, probabilities_to);
      probabilities_to += form_.top;
    }
  }
}

}  // namespace sherd::engine
