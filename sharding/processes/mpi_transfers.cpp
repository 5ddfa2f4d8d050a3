#include "sharding/processes/mpi_transfers.h"

#include <algorithm>
#include <set>
#include <thread>

#include "core/awake_time.h"
#include "core/error.h"

namespace sherd::sharding {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Time for an interrupted collective to end. What a dead process has begun never ends, and mpirun
// kills the others a second later.
constexpr std::chrono::milliseconds kToFallSilent{2000}, kAfterADeath{200}, kForNewsOfADeath{500};
constexpr std::int64_t kLongestMessage = std::int64_t{64} << 20;

std::chrono::milliseconds patience(const MpiWorld& world) {
  return world.links().by_death() ? kAfterADeath : kToFallSilent;
}

// An error usually follows from a death, which is the better reason.
void check(const MpiWorld& world, int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  const auto deadline = Clock::now() + kForNewsOfADeath;
  while (!world.links().aborted() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  world.throw_if_aborted();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw PeerError("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length)));
}

// Time between two polls: short at first, since most messages are. A worker that waits long must
// not take a core from computing threads.
class BackOff {
 public:
  void reset() { sleep_ = kShortest; }
  void pause() {
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 3 / 2, kLongest);
  }

 private:
  static constexpr microseconds kShortest{10}, kLongest{500};
  microseconds sleep_ = kShortest;
};

}  // namespace

MpiWorld::MpiWorld(MPI_Comm comm, ControlLinks& links, int ranks_per_process,
                   std::chrono::milliseconds timeout)
    : comm_(comm),
      links_(links),
      ranks_per_process_(ranks_per_process),
      timeout_(timeout),
      quiet_word_(fmt::format("world {}: no buffer is touched any more", links.next_world())),
      meters_(static_cast<std::size_t>(ranks_per_process)) {}

// If the world is aborted now, processes that are still working would wait for a word from here.
MpiWorld::~MpiWorld() {
  if (!quiet_) links_.say(quiet_word_, "");
}

void MpiWorld::watch_aborts() {
  links_.on_abort([weak = weak_from_this()] {
    if (const auto world = weak.lock()) world->quiet_if_idle();
  });
}

void MpiWorld::throw_if_aborted() const {
  if (links_.aborted()) throw PeerError("{}", links_.reason());
}

void MpiWorld::quiet_if_idle() {
  std::lock_guard lock(mutex_);
  if (under_way_ > 0 || quiet_ || !links_.aborted()) return;
  quiet_ = true;
  links_.say(quiet_word_, "");
}

MpiWorld::Collective::Collective(MpiWorld& world) : world_(world) {
  std::lock_guard lock(world_.mutex_);
  world_.throw_if_aborted();
  ++world_.under_way_;
}

// Others may still wait for the rest of a message of ours, which only progresses in MPI calls.
MpiWorld::Collective::~Collective() {
  {
    std::lock_guard lock(world_.mutex_);
    --world_.under_way_;
  }
  if (!world_.links_.aborted()) return;
  world_.quiet_if_idle();
  const auto deadline = Clock::now() + patience(world_);
  while (!world_.links_.heard(world_.quiet_word_, std::chrono::milliseconds(1)) &&
         Clock::now() < deadline) {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_.comm_, &found, MPI_STATUS_IGNORE);
  }
}

void MpiTransfers::add(MPI_Request request, int peer, bool receiving) {
  requests_.push_back(request);
  peers_.push_back(peer);
  receiving_.push_back(receiving);
  ++num_open_;
}

void MpiTransfers::send(int peer, const void* data, std::int64_t bytes) {
  const MpiRoute& route = routes_[static_cast<std::size_t>(peer)];
  if (meter_) meter_->add(route.crosses, bytes);
  if (route.within_process) {
    sent_here_.push_back({world_.thread_messages().send(route.send_tag, data, bytes), peer});
    return;
  }
  for (std::int64_t at = 0; at < bytes; at += kLongestMessage) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(world_,
          MPI_Isend(static_cast<const char*>(data) + at,
                    static_cast<int>(std::min(kLongestMessage, bytes - at)), MPI_BYTE,
                    route.process, route.send_tag, world_.comm(), &request),
          "MPI_Isend");
    add(request, peer, false);
  }
}

void MpiTransfers::receive(int peer, void* data, std::int64_t bytes) {
  const MpiRoute& route = routes_[static_cast<std::size_t>(peer)];
  if (route.within_process) {
    expected_here_.push_back(
        {world_.thread_messages().expect(route.receive_tag, data, bytes), peer});
    return;
  }
  for (std::int64_t at = 0; at < bytes; at += kLongestMessage) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(world_,
          MPI_Irecv(static_cast<char*>(data) + at,
                    static_cast<int>(std::min(kLongestMessage, bytes - at)), MPI_BYTE,
                    route.process, route.receive_tag, world_.comm(), &request),
          "MPI_Irecv");
    add(request, peer, true);
  }
}

// Whether any has been completed since.
bool MpiTransfers::test() {
  const bool here = test_here();
  return test_mpi() || here;
}

bool MpiTransfers::test_here() {
  const auto copied =
      std::erase_if(sent_here_, [](const HereSent& sent) { return sent.message->copied(); });
  const auto taken = std::erase_if(expected_here_, [this](const HereExpected& expected) {
    return world_.thread_messages().take(expected.receive);
  });
  return copied + taken > 0;
}

bool MpiTransfers::test_mpi() {
  if (num_open_ == 0) {  // other transfers of this rank may be, which only calls of MPI move
    int found = 0;
    if (any_open())
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_.comm(), &found, MPI_STATUS_IGNORE);
    return false;
  }
  completed_.resize(requests_.size());
  int count = 0;
  check(world_,
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                     completed_.data(), MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  if (count == MPI_UNDEFINED) count = 0;
  num_open_ -= count;
  return count > 0;
}

// The peers of what isn't complete.
std::vector<int> MpiTransfers::missing() const {
  std::set<int> peers;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) peers.insert(peers_[i]);
  }
  for (const HereSent& sent : sent_here_) peers.insert(sent.peer);
  for (const HereExpected& expected : expected_here_) peers.insert(expected.peer);
  return {peers.begin(), peers.end()};
}

// It looks much more often, unless its process is stopped.
constexpr std::chrono::seconds kOften{1};

void MpiTransfers::wait(const std::function<std::string(const std::vector<int>& peers)>& overdue) {
  auto deadline = Clock::now() + world_.timeout();
  AwakeTime awake(kOften);
  BackOff back_off;
  while (any_open()) {
    deadline += awake.stopped();
    if (test()) {
      back_off.reset();
      deadline = Clock::now() + world_.timeout();
      continue;
    }
    world_.throw_if_aborted();
    if (Clock::now() >= deadline) {
      world_.links().catch_up();
      world_.throw_if_aborted();
      world_.links().abort(overdue(missing()));
      world_.throw_if_aborted();
    }
    back_off.pause();
  }
  requests_.clear();
  peers_.clear();
  receiving_.clear();
}

// A send that is never received stays open, because MPI can't cancel it. Its buffer is never read,
// since all receives are cancelled.
MpiTransfers::~MpiTransfers() {
  for (const HereSent& sent : sent_here_) ThreadMessages::give_up(*sent.message);
  if (num_open_ == 0) return;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (receiving_[i] && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }
  const auto receives = [&] {
    bool open = false;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      open |= receiving_[i] && requests_[i] != MPI_REQUEST_NULL;
    }
    return open;
  };
  const auto deadline = Clock::now() + patience(world_);
  BackOff back_off;
  try {
    while (receives() && Clock::now() < deadline) {
      if (!test_mpi()) back_off.pause();
    }
  } catch (const PeerError&) {  // the collective is given up with another reason already
  }
}

}  // namespace sherd::sharding
