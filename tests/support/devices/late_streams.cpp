#include "tests/support/devices/late_streams.h"

#include <algorithm>
#include <deque>

#include "core/thread_team.h"

namespace sherd::testing {
namespace {

/// The last recorded point, as a number of that stream's pieces of work.
struct LateEvent final : Event {
  LateStreams::OneStream* stream = nullptr;
  std::int64_t point = 0;
};

}  // namespace

class LateStreams::OneStream final : public Stream {
 public:
  enum class Kind { kLate, kAtOnce, kAtOnceAndBlocking };

  OneStream(const StreamOptions& options, Kind kind, std::shared_ptr<StreamsOfRank> of_rank)
      : Stream(options), kind_(kind), of_rank_(std::move(of_rank)), team_(options.num_threads) {
    of_rank_->push_back(this);
  }
  ~OneStream() override { std::erase(*of_rank_, this); }

  DeviceKind device() const override { return DeviceKind::kCpu; }
  void run(std::string_view, std::function<void()> work) override {
    enqueue({std::move(work), nullptr, 0});
  }
  std::unique_ptr<Event> make_event() const override { return std::make_unique<LateEvent>(); }
  void record(Event& event) override {
    auto& recorded = dynamic_cast<LateEvent&>(event);
    recorded.stream = this;
    recorded.point = num_done_ + std::ssize(queue_);
  }
  void wait(const Event& event) override {
    const auto& awaited = dynamic_cast<const LateEvent&>(event);
    if (awaited.stream != nullptr) enqueue({{}, awaited.stream, awaited.point});
  }
  void synchronize() override { finish(num_done_ + std::ssize(queue_)); }
  std::chrono::nanoseconds waited() const override { return {}; }
  ThreadTeam& team() override { return team_; }

 private:
  /// Work, or a wait until `source` has done `point` pieces.
  struct Item {
    std::function<void()> work;
    OneStream* source;
    std::int64_t point;
  };

  void enqueue(Item item) {
    queue_.push_back(std::move(item));
    if (kind_ == Kind::kAtOnceAndBlocking) {
      synchronize();
    } else {
      progress();
    }
  }
  /// Everything that needs no work of a late stream.
  void progress() {
    while (kind_ != Kind::kLate && !queue_.empty() && is_ready(queue_.front())) step();
  }
  static bool is_ready(const Item& item) {
    return item.source == nullptr || item.source->num_done_ >= item.point;
  }
  void finish(std::int64_t point) {
    while (num_done_ < point) step();
  }
  void step() {
    if (const Item& head = queue_.front(); !is_ready(head)) {
      // Meanwhile other streams continue too, perhaps this stream with this very item.
      return head.source->finish(head.point);
    }
    const Item item = std::move(queue_.front());
    queue_.pop_front();
    if (item.work) item.work();
    ++num_done_;
    for (OneStream* stream : *of_rank_) stream->progress();
  }

  Kind kind_;
  std::shared_ptr<StreamsOfRank> of_rank_;
  ThreadTeam team_;
  std::deque<Item> queue_;
  std::int64_t num_done_ = 0;
};

LateStreams::LateStreams(std::string late)
    : late_(std::move(late)), ranks_(std::make_shared<Ranks>()) {}

std::unique_ptr<Stream> LateStreams::make_stream(StreamOptions options) const {
  using Kind = OneStream::Kind;
  const Kind at_once =
      options.purpose == StreamPurpose::kCompute ? Kind::kAtOnceAndBlocking : Kind::kAtOnce;
  std::shared_ptr<StreamsOfRank> of_rank;
  {
    const std::lock_guard lock(ranks_->mutex);
    std::shared_ptr<StreamsOfRank>& streams = ranks_->streams[options.rank];
    if (!streams) streams = std::make_shared<StreamsOfRank>();
    of_rank = streams;
  }
  return std::make_unique<OneStream>(options, options.name == late_ ? Kind::kLate : at_once,
                                     std::move(of_rank));
}

}  // namespace sherd::testing
