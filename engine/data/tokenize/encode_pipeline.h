/// The threads of `tokenize`: one reads, several encode; the caller gets batches in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/data/files/document_batches.h"

namespace sherd::data {

struct EncodedDocument {
  std::int64_t end = 0;   ///< one past its last id in the batch
  std::string why_bad{};  ///< if not empty, the document has no ids
  bool is_empty = false;  ///< its text is empty, so it has no ids either
};

struct EncodedBatch {
  std::vector<RawDocument> raw;  ///< places only; texts have been freed
  std::vector<EncodedDocument> documents;
  std::vector<std::int32_t> ids;
  std::int64_t text_bytes = 0;
};

class EncodePipeline {
 public:
  /// `read` returns batches, and an empty one at the end; one thread calls it. `make_encode` makes
  /// a separate function for each worker.
  using Read = std::function<std::vector<RawDocument>()>;
  using Encode = std::function<void(EncodedBatch& batch)>;
  EncodePipeline(Read read, const std::function<Encode()>& make_encode, int num_workers);
  ~EncodePipeline();  ///< discards batches in progress
  EncodePipeline(const EncodePipeline&) = delete;
  EncodePipeline& operator=(const EncodePipeline&) = delete;

  /// The next batch in the order of reading; null at the end.
  /// Errors   rethrows what `read` or an `Encode` threw, at its place in the order.
  std::unique_ptr<EncodedBatch> next();

 private:
  struct Slot {
    std::unique_ptr<EncodedBatch> batch;
    std::exception_ptr error;
    bool taken = false;
    bool ready = false;
  };
  void read_all(const Read& read);
  void work(const Encode& encode);
  void stop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> slots_;  ///< in order; at most max_slots_
  std::size_t max_slots_;
  bool read_all_ = false;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sherd::data
