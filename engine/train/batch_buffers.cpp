#include "engine/train/batch_buffers.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "engine/train/layout/sharding_plan.h"
#include "kernels/token.h"

namespace sherd::engine {
namespace {

static_assert(data::kNoTarget == kernels::kNoTarget);

// One buffer: T + 1 starts, T lengths, T positions.
std::int64_t documents_numel(std::int64_t tokens) {
  return 3 * tokens + 1;
}

constexpr const char* kTeacher = ".teacher";
constexpr const char* kAhead = ".ahead";

std::vector<Tensor> ahead_tensors(const Tensor& all, std::int64_t tokens) {
  std::vector<Tensor> tensors;
  for (std::int64_t begin = 0; begin < all.numel; begin += tokens) {
    tensors.push_back(all.part(begin, tokens));
  }
  return tensors;
}

// One buffer: ids, then the bits of probabilities.
std::pair<Tensor, Tensor> teacher_tensors(const Tensor& all) {
  const std::int64_t half = all.numel / 2;
  return {all.part(0, half), {all.part(half, half).data, DType::kF32, half}};
}

struct DocumentTensors {
  Tensor starts, lengths, positions;
};
DocumentTensors document_tensors(const Tensor& all, std::int64_t tokens) {
  return {all.part(0, tokens + 1), all.part(tokens + 1, tokens), all.part(2 * tokens + 1, tokens)};
}

}  // namespace

std::vector<BufferSpec> batch_buffers(const std::string& name, const TrainingOptions& options,
                                      Phases phases) {
  const std::int64_t tokens = options.model.tokens();
  const auto spec = [&](const char* kind, std::int64_t numel) {
    return BufferSpec{name + kind, Category::kData, DType::kI32, numel, phases, Home::kMirrored};
  };
  std::vector<BufferSpec> specs = {spec(".inputs", tokens), spec(".targets", tokens)};
  if (options.separate_documents) specs.push_back(spec(".documents", documents_numel(tokens)));
  return specs;
}

std::vector<BufferSpec> training_batch_buffers(const std::string& name,
                                               const TrainingOptions& options, Phases phases) {
  std::vector<BufferSpec> specs = batch_buffers(name, options, phases);
  if (const std::int64_t top = options.model.teacher.top; top > 0) {
    specs.push_back({name + kTeacher, Category::kData, DType::kI32,
                     2 * options.model.tokens() * top, phases, Home::kMirrored});
  }
  if (const std::int64_t layers = options.model.mtp_layers; layers > 0) {
    specs.push_back({name + kAhead, Category::kData, DType::kI32,
                     2 * layers * options.model.tokens(), phases, Home::kMirrored});
  }
  return specs;
}

OwnPositions::OwnPositions(const TrainingOptions& options, const sharding::Rank& rank)
    : sequences_(options.model.sequences),
      seq_length_(options.model.seq_length),
      degree_(rank.mesh.degree(sharding::kContextAxis)) {
  const model::ModelShape own = rank_model(options, rank.mesh, rank.rank);
  for (int run = 0; run < own.position_runs(); ++run) runs_.push_back(own.position_run(run));
}

void OwnPositions::move_to_front(const data::Batch& batch) const {
  if (degree_ == 1) return;
  std::vector<Tensor> all = {batch.inputs, batch.targets, batch.positions, batch.teacher_ids,
                             batch.teacher_probabilities};
  all.insert(all.end(), batch.ahead.begin(), batch.ahead.end());
  for (const Tensor& tokens : all) {
    if (!tokens) continue;  // without documents apart, without a teacher
    const std::int64_t width = tokens.numel / batch.inputs.numel;
    auto* words = static_cast<std::uint32_t*>(tokens.data);
    auto* to = words;
    for (std::int64_t row = 0; row < sequences_; ++row) {
      for (const auto& [first, count] : runs_) {
        const auto* from = words + (row * seq_length_ + first) * width;
        to = std::copy(from, from + count * width, to);  // never after the place that is read
      }
    }
  }
}

TokenBatch OwnPositions::of(TokenBatch batch) const {
  if (degree_ == 1) return batch;
  const std::int64_t own = sequences_ * seq_length_ / degree_;
  batch.inputs = batch.inputs.part(0, own);
  batch.targets = batch.targets.part(0, own);
  if (batch.documents) batch.documents.positions = batch.documents.positions.part(0, own);
  batch.teacher_ids = batch.teacher_ids.part(0, batch.teacher_ids.numel / degree_);
  batch.teacher_probabilities =
      batch.teacher_probabilities.part(0, batch.teacher_probabilities.numel / degree_);
  for (Tensor& ahead : batch.ahead) ahead = ahead.part(0, own);
  return batch;
}

std::vector<std::int64_t> OwnPositions::in_row() const {
  std::vector<std::int64_t> positions;
  for (const auto& [first, count] : runs_) {
    for (std::int64_t i = 0; i < count; ++i) positions.push_back(first + i);
  }
  return positions;
}

data::Batch first_tokens(data::Batch batch, std::int64_t tokens) {
  batch.inputs = batch.inputs.part(0, tokens);
  batch.targets = batch.targets.part(0, tokens);
  if (!batch.starts) return batch;
  batch.starts = batch.starts.part(0, tokens + 1);
  batch.lengths = batch.lengths.part(0, tokens);
  batch.positions = batch.positions.part(0, tokens);
  return batch;
}

TokenBatch first_tokens(TokenBatch batch, std::int64_t tokens) {
  batch.inputs = batch.inputs.part(0, tokens);
  batch.targets = batch.targets.part(0, tokens);
  kernels::Documents& documents = batch.documents;
  if (!documents) return batch;
  documents.starts = documents.starts.part(0, tokens + 1);
  documents.lengths = documents.lengths.part(0, tokens);
  documents.positions = documents.positions.part(0, tokens);
  return batch;
}

BatchBuffers::BatchBuffers(const sharding::Rank& rank, const std::vector<BufferSpec>& specs)
    : inputs_(rank, specs[0]), targets_(rank, specs[1]) {
  for (const BufferSpec& spec : std::span(specs).subspan(2)) {
    (spec.name.ends_with(kTeacher) ? teacher_
     : spec.name.ends_with(kAhead) ? ahead_
                                   : documents_) = {rank, spec};
  }
}

data::Batch BatchBuffers::host() const {
  data::Batch batch{inputs_.host(), targets_.host()};
  if (ahead_.device()) batch.ahead = ahead_tensors(ahead_.host(), batch.inputs.numel);
  if (teacher_.device()) {
    std::tie(batch.teacher_ids, batch.teacher_probabilities) = teacher_tensors(teacher_.host());
  }
  if (!documents_.device()) return batch;
  const DocumentTensors documents = document_tensors(documents_.host(), batch.inputs.numel);
  batch.starts = documents.starts;
  batch.lengths = documents.lengths;
  batch.positions = documents.positions;
  return batch;
}

TokenBatch BatchBuffers::device() const {
  TokenBatch batch{inputs_.device(), targets_.device()};
  if (ahead_.device()) batch.ahead = ahead_tensors(ahead_.device(), batch.inputs.numel);
  if (teacher_.device()) {
    std::tie(batch.teacher_ids, batch.teacher_probabilities) = teacher_tensors(teacher_.device());
  }
  if (!documents_.device()) return batch;
  const DocumentTensors documents = document_tensors(documents_.device(), batch.inputs.numel);
  batch.documents = {documents.starts, documents.lengths, documents.positions};
  return batch;
}

void BatchBuffers::to_device(Stream& stream) const {
  inputs_.to_device(stream);
  targets_.to_device(stream);
  if (documents_.device()) documents_.to_device(stream);
  if (teacher_.device()) teacher_.to_device(stream);
  if (ahead_.device()) ahead_.to_device(stream);
}

}  // namespace sherd::engine
