/// One save of one rank, internal to Writer: a thread that writes the shard, then follows orders.
/// The owner's calls change the phase and set an order; the thread executes it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "checkpoint/shard_writer.h"
#include "checkpoint/store/commit.h"
#include "checkpoint/writer.h"

namespace sherd::checkpoint {

class Writer::Save {
 public:
  Save(const WriterOptions& options, std::int64_t step, std::string save_uuid,
       const sharding::State& state);
  ~Save();

  bool wait_copied(std::optional<std::chrono::milliseconds> most);
  SaveStatus status() const;
  SaveStatus wait();
  void commit(std::shared_ptr<const nlohmann::json> global);
  void finish();
  void discard();

 private:
  enum class Order { kNone, kCommit, kFinish, kDiscard };

  void run();
  void write_shard();
  void copy();
  void set_copied();
  Order next_order();
  void do_commit();
  void do_discard();
  void fail();
  void warn(std::string_view warning);
  void enter(SavePhase phase);
  template <class Work>
  void attempt(const Work& work);
  bool is_busy() const;

  const WriterOptions options_;
  const std::int64_t step_;
  const std::string save_uuid_;
  const std::vector<sharding::StateTensor> tensors_;
  const std::string temporary_;
  const std::string shard_path_;
  const std::string part_path_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  ShardWriter shard_;
  std::unique_ptr<Commit> commit_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  SaveStatus status_;
  Order order_ = Order::kNone;
  bool copied_ = false;
  bool prepared_ = false;  ///< shard durable and part written; used by thread_
  bool leaving_ = false;   ///< ~Save: don't wait for anything after a successful commit
  std::shared_ptr<const nlohmann::json> global_;
  std::thread thread_;
};

}  // namespace sherd::checkpoint
