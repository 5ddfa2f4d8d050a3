/// A communicator that counts the traffic of training steps, and the planned counts.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "engine/train/training_step.h"
#include "sharding/comm/communicator.h"

namespace sherd::testing {

struct Count {
  std::int64_t calls = 0, bytes = 0;
  bool operator==(const Count&) const = default;
};
/// By collective and type.
using Counts = std::map<std::pair<std::string, std::string>, Count>;

/// Counts with the costs stated in sharding/comm/communicator.h, and forwards every call.
class Counting final : public sharding::Communicator {
 public:
  Counting(std::unique_ptr<Communicator> inner, Counts& counts)
      : inner_(std::move(inner)), counts_(counts) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    count("all_gather", full.dtype, full.bytes() - full.bytes() / world_size());
    inner_->all_gather(stream, label, full);
  }
  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const sharding::Addends& addends) override {
    count("reduce_scatter", full.dtype,
          addends.contains(rank()) ? full.bytes() / world_size() * (world_size() - 1) : 0);
    inner_->reduce_scatter(stream, label, full, out, addends);
  }
  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    count("all_reduce", full.dtype, 2 * (full.bytes() - full.bytes() / world_size()));
    inner_->all_reduce(stream, label, full, tree);
  }
  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    count("all_to_all", full.dtype, full.bytes() - full.bytes() / world_size());
    inner_->all_to_all(stream, label, full, out);
  }
  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    std::int64_t numel = 0;
    for (std::size_t r = 0; r < sends.size(); ++r) {
      if (static_cast<int>(r) != rank()) numel += sends[r].count;
    }
    count("all_to_all_v", from.dtype, numel * static_cast<std::int64_t>(size_of(from.dtype)));
    inner_->all_to_all_v(stream, label, from, sends, to, receives);
  }
  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    count("broadcast", data.dtype, root == rank() ? data.bytes() * (world_size() - 1) : 0);
    inner_->broadcast(stream, label, data, root);
  }
  void barrier(Stream& stream, const std::string& label) override {
    ADD_FAILURE() << "a barrier, which no plan lists";
    inner_->barrier(stream, label);
  }
  bool calls_meet() const override { return inner_->calls_meet(); }
  void check_alive() override { inner_->check_alive(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  void count(const char* collective, DType dtype, std::int64_t bytes) {
    Count& count = counts_[{collective, std::string(sherd::name_of(dtype))}];
    ++count.calls;
    count.bytes += bytes;
  }

  std::unique_ptr<Communicator> inner_;
  Counts& counts_;
};

/// The plan's counts for a rank with such a device.
inline Counts planned(const engine::TrainingOptions& options, const sharding::Mesh& mesh, int rank,
                      DeviceKind device = DeviceKind::kCpu) {
  Counts counts;
  const auto traffic = engine::TrainingStep::traffic(options, mesh, rank, device);
  std::int64_t total = 0;
  for (const sharding::Sent& sent : traffic.sent()) {
    Count& count = counts[{std::string(sharding::name_of(sent.collective)),
                           std::string(sherd::name_of(sent.dtype))}];
    count.calls += sent.calls;
    count.bytes += sent.bytes;
    total += sent.bytes;
  }
  EXPECT_EQ(total, traffic.total_bytes());
  return counts;
}

inline std::string text_of(const Counts& counts) {
  std::string text;
  for (const auto& [key, count] : counts) {
    text += fmt::format("{} {}: {} calls, {} B\n", key.first, key.second, count.calls, count.bytes);
  }
  return text;
}

}  // namespace sherd::testing
