#include "core/ledger.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "core/error.h"
#include "core/thread_team.h"

namespace sherd {
namespace {

struct LedgerEvent final : Event {
  double at = 0.0;  // 0: never recorded
};

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace

// Nothing begins before the host has asked for it.
void LedgerStream::begin_call() {
  if (in_graph_) return;
  ledger_.host_now += ledger_.host_seconds_of_a_call();
  now_ = std::max(now_, ledger_.host_now);
}

void LedgerStream::add(const Launches& launches) {
  for (Launch launch : launches) {
    begin_call();
    launch.deterministic = cuda_.deterministic;
    const double seconds = ledger_.launch(launch);
    now_ += seconds;
    if (options().purpose != StreamPurpose::kCompute) ledger_.beside_compute += seconds;
  }
}

void LedgerStream::add(const Exchange& exchange) {
  begin_call();
  now_ += ledger_.exchange(exchange);
}

void LedgerStream::add_host_work(std::int64_t read, std::int64_t written) {
  begin_call();
  now_ += ledger_.launch({.kernel = kHostWork, .read = read, .written = written});
}

// A graph is one call of the host.
void LedgerStream::section(const std::string&, const std::function<void()>& enqueue) {
  if (!cuda_.graphs) return enqueue();
  begin_call();
  in_graph_ = true;
  enqueue();
  in_graph_ = false;
}

void LedgerStream::run(std::string_view, std::function<void()> work) {
  work();
}

void LedgerStream::copy(const void* from, void* to, std::int64_t bytes) {
  if (bytes == 0) return;
  const Launch launch{.kernel = "copy", .read = bytes, .written = bytes};
  if (!ledger_.is_host || !(ledger_.is_host(from) || ledger_.is_host(to))) return add({launch});
  // A copy engine's work: it takes nothing from kernels of other streams.
  begin_call();
  Launch over_link = launch;
  over_link.kernel = kHostCopy;
  now_ += ledger_.launch(over_link);
}

std::unique_ptr<Event> LedgerStream::make_event() const {
  return std::make_unique<LedgerEvent>();
}

void LedgerStream::record(Event& event) {
  dynamic_cast<LedgerEvent&>(event).at = now_;
}

void LedgerStream::wait(const Event& event) {
  const auto& recorded = dynamic_cast<const LedgerEvent&>(event);
  const double begin = std::max(now_, ledger_.host_now);
  if (recorded.at <= begin) return;
  const double stall = recorded.at - begin;
  waited_.at(event.counts_as) += stall;
  now_ = recorded.at;
  // While this stream waited, the kernels it waited for had the GPU.
  if (options().purpose == StreamPurpose::kCompute) {
    ledger_.beside_compute -= std::min(ledger_.beside_compute, stall);
  }
}

void LedgerStream::synchronize() {
  ledger_.host_now = std::max(ledger_.host_now, now_);
}

std::chrono::nanoseconds LedgerStream::waited() const {
  return nanoseconds_of(std::accumulate(waited_.begin(), waited_.end(), 0.0));
}

std::chrono::nanoseconds LedgerStream::waited_for(std::size_t kind) const {
  return nanoseconds_of(waited_.at(kind));
}

ThreadTeam& LedgerStream::team() {
  SHERD_CHECK(false, "a stream that keeps a ledger has no threads");
  std::abort();
}

CUstream_st* LedgerStream::handle() const {
  SHERD_CHECK(false, "a stream that keeps a ledger has no queue on a GPU");
  std::abort();
}

void LedgerStream::communicate(std::size_t kind, const std::function<void()>& calls) {
  const double begin = std::max(now_, ledger_.host_now);
  calls();
  waited_.at(kind) += std::max(0.0, now_ - begin);
}

LedgerStream* ledger_stream(Stream& stream) {
  return dynamic_cast<LedgerStream*>(&stream);
}

}  // namespace sherd
