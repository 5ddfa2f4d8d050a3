#include "engine/train/units/loss_sums.h"

#include <span>

#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

constexpr int kNumbers = ExactSum::kNumbers;

BufferSpec sums_buffer(const char* name, int num_sums) {
  return {name,    Category::kWorkspace, DType::kF64, std::int64_t{kNumbers} * num_sums,
          kAlways, Home::kMirrored};
}

Tensor sum_of(const Tensor& sums, int index) {
  return sums.part(std::int64_t{kNumbers} * index, kNumbers);
}

}  // namespace

std::vector<BufferSpec> LossSums::buffers(const TrainingOptions& options) {
  std::vector<BufferSpec> buffers = {sums_buffer("loss_sum", 1)};
  if (options.num_loss_sources > 0) {
    buffers.push_back(sums_buffer("loss_sum.sources", options.num_loss_sources));
  }
  if (options.model.has_further_losses()) {
    const char* name = options.model.mtp_layers > 0 ? "mtp.loss_sums"
                       : options.model.teacher      ? "divergence_sum"
                                                    : "z_loss_sum";
    buffers.push_back(sums_buffer(name, static_cast<int>(options.model.num_further_losses())));
  }
  return buffers;
}

LossSums::LossSums(const TrainingOptions& options, const sharding::Rank& rank)
    : rank_(rank),
      num_sources_(options.num_loss_sources),
      num_further_(static_cast<int>(options.model.num_further_losses())),
      total_(rank, buffers(options)[0]) {
  if (num_sources_ > 0) by_source_ = {rank, buffers(options)[1]};
  if (num_further_ > 0) further_ = {rank, buffers(options).back()};
}

void LossSums::add(const Tensor& losses, bool first) {
  kernels::sum(rank_.compute(), losses, total_.device(), !first);
}

// Neighbouring rows of one source are added together.
void LossSums::add_by_source(const Tensor& losses, std::int64_t first_row, std::int64_t num_rows,
                             bool first) {
  if (num_sources_ == 0) return;
  if (first) kernels::fill_zero(rank_.compute(), by_source_.device());
  const std::int64_t length = losses.numel / num_rows;
  for (std::int64_t row = 0, end = 0; row < num_rows; row = end) {
    const int source = source_of_row(first_row + row);
    for (end = row + 1; end < num_rows && source_of_row(first_row + end) == source;) ++end;
    kernels::sum(rank_.compute(), losses.part(row * length, (end - row) * length),
                 sum_of(by_source_.device(), source), true);
  }
}

void LossSums::add_further(const Tensor& losses, bool first) {
  const std::int64_t tokens = losses.numel / num_further_;
  for (int i = 0; i < num_further_; ++i) {
    kernels::sum(rank_.compute(), losses.part(i * tokens, tokens), sum_of(further_.device(), i),
                 !first);
  }
}

std::vector<ExactSum> LossSums::read(const sharding::MirroredBuffer& sums, int count) const {
  std::vector<ExactSum> read;
  if (count == 0) return read;
  sums.to_host(rank_.compute());
  rank_.compute().synchronize();
  for (int i = 0; i < count; ++i) {
    read.emplace_back(std::span(sum_of(sums.host(), i).as<double>(), kNumbers));
  }
  return read;
}

ExactSum LossSums::total() {
  return read(total_, 1).front();
}

std::vector<ExactSum> LossSums::further_totals() {
  return read(further_, num_further_);
}

std::vector<ExactSum> LossSums::by_source() {
  return read(by_source_, num_sources_);
}

std::vector<float> LossSums::on_host(const Tensor& losses) {
  std::vector<float> values(static_cast<std::size_t>(losses.numel));
  rank_.compute().copy(losses.data, values.data(), losses.bytes());
  rank_.compute().synchronize();
  return values;
}

}  // namespace sherd::engine
