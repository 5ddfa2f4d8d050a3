#include "engine/offload/host_home.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"

namespace sherd::engine {
namespace {

class HostHome final : public OffloadHome {
 public:
  HostHome(const MemoryPlan& plan, const sharding::Rank& rank)
      : host_(*rank.host_memory),
        compute_(rank.compute()),
        down_(rank, "state from host"),
        up_(rank, "state to host"),
        computed_(rank.make_event()) {
    std::vector<BufferSpec> buffers;
    for (const PlannedBuffer& buffer : plan.buffers()) buffers.push_back(buffer.spec);
    copies_ = copy_buffers(buffers, false, true);
  }

  void attach(Allocator& memory) override {
    if (copies_.empty()) return;
    for_compute_ = memory.acquire(copies_.at(0));
    for_gather_ = memory.acquire(copies_.at(1));
  }
  bool has(const void* address) const override { return find(address) != nullptr; }

  Ticket read(const void* address, void* to) override {
    begin(down_);
    down_.stream->wait(up_.last());
    const std::int64_t bytes = block_bytes(address);
    down_.stream->copy(address, to, bytes);
    traffic_.read += bytes;
    return end(down_, 0);
  }
  Ticket write(const void* address, const void* from) override {
    begin(up_);
    const std::int64_t bytes = block_bytes(address);
    up_.stream->copy(from, const_cast<void*>(address), bytes);
    traffic_.written += bytes;
    return end(up_, 1);
  }
  void wait(Ticket ticket) override {
    if (ticket == 0) return;
    compute_.wait((ticket % 2 == 0 ? down_ : up_).event(ticket / 2));
  }
  void drain() noexcept override {
    for (Stream* const stream : {down_.stream.get(), up_.stream.get()}) {
      try {
        stream->synchronize();
      } catch (...) {  // that error is on its way already
      }
    }
  }
  std::chrono::nanoseconds waited() const override { return compute_.waited_for(kWaitsForState); }
  DiskTraffic traffic() const override { return traffic_; }

  void copy(const void* from, void* to, std::int64_t bytes) override {
    up_.stream->synchronize();
    settle();
    compute_.copy(from, to, bytes);
    compute_.synchronize();
  }
  void each_part(Stream& stream, const void* address, std::int64_t bytes, bool writes,
                 const Use& use) override {
    SHERD_CHECK(!writes || &stream == &compute_, "state is written on another stream");
    const Tensor memory = staging(stream);
    stream.wait(up_.last());
    if (&stream == &compute_) settle();
    char* const all = static_cast<char*>(const_cast<void*>(address));
    for (std::int64_t done = 0; done < bytes;) {
      const std::int64_t count = std::min(bytes - done, memory.bytes());
      stream.copy(all + done, memory.data, count);
      use(memory.data, done, count);
      if (writes) stream.copy(memory.data, all + done, count);
      if (!writes) traffic_.read += count;
      done += count;
    }
  }

  void works_on(std::shared_ptr<Stream> cores) override { cores_ = std::move(cores); }
  void settle() override {
    if (cores_) cores_->synchronize();
  }
  void count(const DiskTraffic& moved) override {
    traffic_.read += moved.read;
    traffic_.written += moved.written;
  }

  bool keeps_snapshots() const override { return false; }
  void begin_snapshot() override {
    up_.stream->synchronize();
    settle();
  }
  void end_snapshot() override {}
  void copy_of_snapshot(const void*, void*, std::int64_t) override {
    SHERD_CHECK(false, "state on the host has no snapshots");
  }

 private:
  // Copies in one direction, and points of that stream.
  struct Direction {
    Direction(const sharding::Rank& rank, const std::string& name)
        : stream(rank.make_stream(StreamPurpose::kCopy, name)) {
      for (auto& each : events) {
        each = rank.make_event();
        each->counts_as = kWaitsForState;
      }
    }
    // Points of later requests take the places of those of earlier ones: then one waits longer.
    Event& event(std::int64_t number) const {
      return *events[static_cast<std::size_t>(number) % events.size()];
    }
    Event& last() const { return event(requests); }

    std::unique_ptr<Stream> stream;
    std::array<std::unique_ptr<Event>, 64> events;
    std::int64_t requests = 0;
  };
  struct Place {
    Buffer memory;
    std::int64_t bytes = 0, block_bytes = 0;
  };

  // What a request reads or writes has been computed, and nothing uses its memory any more.
  void begin(Direction& direction) {
    compute_.record(*computed_);
    direction.stream->wait(*computed_);
  }
  static Ticket end(Direction& direction, Ticket kind) {
    direction.stream->record(direction.event(++direction.requests));
    return 2 * direction.requests + kind;
  }

  const std::pair<const char* const, Place>* find(const void* address) const {
    auto after = places_.upper_bound(static_cast<const char*>(address));
    if (after == places_.begin()) return nullptr;
    const auto& place = *std::prev(after);
    return static_cast<const char*>(address) < place.first + place.second.bytes ? &place : nullptr;
  }
  std::int64_t block_bytes(const void* address) const {
    const auto* const found = find(address);
    SHERD_CHECK(found != nullptr, "an address of device memory where one on the host was expected");
    const std::int64_t first = static_cast<const char*>(address) - found->first;
    SHERD_CHECK(first % found->second.block_bytes == 0, "an address inside of a block");
    return std::min(found->second.block_bytes, found->second.bytes - first);
  }
  const Tensor& staging(const Stream& stream) const {
    return (&stream == &compute_ ? for_compute_ : for_gather_).tensor();
  }

  void* place(const BufferSpec& spec) override {
    Buffer memory = host_.acquire(on_host(spec));
    const Tensor& tensor = memory.tensor();
    const std::int64_t all = tensor.bytes();
    const std::int64_t block = spec.disk_block * static_cast<std::int64_t>(size_of(spec.dtype));
    auto* const first = static_cast<char*>(tensor.data);
    if (all > 0) places_.emplace(first, Place{std::move(memory), all, block > 0 ? block : all});
    return first;
  }
  void remove(const BufferSpec&, void* data) noexcept override {
    places_.erase(static_cast<const char*>(data));
  }
  void came_alive(const BufferSpec&, void*) noexcept override {}
  void went_away(const BufferSpec&, void*) noexcept override {}

  Allocator& host_;
  Stream& compute_;
  Direction down_, up_;
  std::unique_ptr<Event> computed_;
  std::map<const char*, Place> places_;
  std::shared_ptr<Stream> cores_;  // of the host code that makes changes; may be null
  std::vector<BufferSpec> copies_;
  Buffer for_compute_, for_gather_;
  DiskTraffic traffic_;
};

}  // namespace

std::shared_ptr<OffloadHome> make_host_home(const MemoryPlan& plan, const sharding::Rank& rank) {
  SHERD_CHECK(rank.separate_memory(), "state in the memory where it is already");
  return std::make_shared<HostHome>(plan, rank);
}

}  // namespace sherd::engine
