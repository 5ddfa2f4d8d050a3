#include "sharding/comm/flight_recorder.h"

#include "core/error.h"

namespace sherd::sharding {
namespace {

const char* name_of(FlightRecorder::State state) {
  switch (state) {
    case FlightRecorder::State::kEnqueued:
      return "enqueued";
    case FlightRecorder::State::kRunning:
      return "running";
    case FlightRecorder::State::kDone:
      return "done";
  }
  return "?";
}

class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> inner, std::string group,
                       FlightRecorder& recorder)
      : inner_(std::move(inner)), group_(std::move(group)), recorder_(recorder) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }

  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    record(stream, "all_gather", label, full, [&] { inner_->all_gather(stream, label, full); });
  }
  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    record(stream, "reduce_scatter", label, full,
           [&] { inner_->reduce_scatter(stream, label, full, out, addends); });
  }
  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    record(stream, "all_reduce", label, full,
           [&] { inner_->all_reduce(stream, label, full, tree); });
  }
  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    record(stream, "all_to_all", label, full,
           [&] { inner_->all_to_all(stream, label, full, out); });
  }
  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    record(stream, "all_to_all_v", label, from,
           [&] { inner_->all_to_all_v(stream, label, from, sends, to, receives); });
  }
  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    record(stream, "broadcast", label, data, [&] { inner_->broadcast(stream, label, data, root); });
  }
  void barrier(Stream& stream, const std::string& label) override {
    record(stream, "barrier", label, {}, [&] { inner_->barrier(stream, label); });
  }
  bool calls_meet() const override { return inner_->calls_meet(); }
  void check_alive() override { inner_->check_alive(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  template <class Call>
  void record(Stream& stream, const char* operation, const std::string& label, const Tensor& data,
              const Call& call) {
    const std::int64_t number = recorder_.enqueued(group_, operation, label, data.bytes());
    const auto enter = [&](FlightRecorder::State state) {
      if (stream.device() != DeviceKind::kCpu) return;
      // A label that traces leave out.
      stream.run("record",
                 [&recorder = recorder_, number, state] { recorder.enter(number, state); });
    };
    enter(FlightRecorder::State::kRunning);
    call();
    enter(FlightRecorder::State::kDone);
  }

  const std::unique_ptr<Communicator> inner_;
  const std::string group_;
  FlightRecorder& recorder_;
};

}  // namespace

std::int64_t FlightRecorder::enqueued(const std::string& group, const char* operation,
                                      const std::string& label, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  Call call{++num_calls_, State::kEnqueued, group, operation, label, bytes};
  const std::size_t place = static_cast<std::size_t>(num_calls_ - 1) % kCalls;
  if (place < ring_.size()) {
    ring_[place] = std::move(call);
  } else {
    ring_.push_back(std::move(call));
  }
  return num_calls_;
}

void FlightRecorder::enter(std::int64_t number, State state) {
  std::lock_guard lock(mutex_);
  Call& call = ring_[static_cast<std::size_t>(number - 1) % kCalls];
  if (call.number == number) call.state = state;
}

std::vector<FlightRecorder::Call> FlightRecorder::calls() const {
  std::lock_guard lock(mutex_);
  std::vector<Call> calls;
  const std::size_t oldest =
      ring_.size() < kCalls ? 0 : static_cast<std::size_t>(num_calls_) % kCalls;
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    calls.push_back(ring_[(oldest + i) % ring_.size()]);
  }
  return calls;
}

std::string FlightRecorder::text() const {
  std::string text;
  for (const Call& call : calls()) {
    text += fmt::format("{:>8}  {:<8}  {:<14}  {:<24}  {:>12} B  {}\n", call.number,
                        name_of(call.state), call.operation, call.label, call.bytes, call.group);
  }
  return text;
}

std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> communicator,
                                       const std::string& group, FlightRecorder& recorder) {
  return std::make_unique<RecordedCommunicator>(std::move(communicator), group, recorder);
}

}  // namespace sherd::sharding
