#include "sharding/processes/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>

#include "core/error.h"
#include "kernels/pointwise.h"
#include "sharding/comm/machine_relays.h"
#include "sharding/comm/meeting_place.h"
#include "sharding/comm/slices.h"
#include "sharding/processes/group_numbers.h"
#include "sharding/processes/mpi.h"
#include "sharding/processes/mpi_machine_sums.h"
#include "sharding/processes/mpi_transfers.h"

namespace sherd::sharding {
namespace {

constexpr std::int64_t kStaging = std::int64_t{8} << 20, kShortestPiece = 64 << 10;

constexpr std::array<const char*, 7> kCollectives = {"all_gather",  "reduce_scatter", "all_reduce",
                                                     "broadcast",   "barrier",        "all_to_all",
                                                     "all_to_all_v"};

// What a rank tells the others of its call.
struct Announcement {
  std::int64_t numel = 0;
  std::uint64_t label_hash = 0;  // of all of it
  std::int32_t collective = 0, dtype = 0, root = 0, label_length = 0;
  char label[224] = {};

  Announcement() = default;
  Announcement(int number, const Contribution& call)
      : numel(call.data.numel),
        label_hash(std::hash<std::string>{}(call.label)),
        collective(number),
        dtype(static_cast<std::int32_t>(call.data.dtype)),
        root(call.root),
        label_length(static_cast<std::int32_t>(std::min(call.label.size(), sizeof label))) {
    std::memcpy(label, call.label.data(), static_cast<std::size_t>(label_length));
  }
  bool agrees(const Announcement& other) const {
    return std::memcmp(this, &other, sizeof *this) == 0;
  }
  Contribution contribution() const {
    return {kCollectives.at(static_cast<std::size_t>(collective)),
            std::string(label, static_cast<std::size_t>(label_length)),
            Tensor{nullptr, static_cast<DType>(dtype), numel}, root};
  }
};
static_assert(sizeof(Announcement) == 256);

// A message's tag: the group, the sender and the receiver within their processes. MPI has 31 bits
// for it. The group gets what the two places leave of 30, so two groups with two ranks in common
// hardly ever have the same number.
struct Tags {
  int bits_of_a_place = 0;

  explicit Tags(int ranks_per_process)
      : bits_of_a_place(std::bit_width(static_cast<std::uint32_t>(ranks_per_process - 1))) {}
  std::uint32_t num_groups() const { return 1u << (30 - 2 * bits_of_a_place); }
  int of(std::uint32_t group, int sender, int receiver) const {
    return static_cast<int>((group << bits_of_a_place | static_cast<std::uint32_t>(sender))
                                << bits_of_a_place |
                            static_cast<std::uint32_t>(receiver));
  }
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, const Group& group, std::uint32_t group_number,
                  const MachinesOfProcesses& machines)
      : world_(std::move(world)),
        ranks_(group.ranks),
        rank_(group.index),
        relays_(group, world_->ranks_per_process(),
                machines.pass_gathers_on ? machines.of_process : std::vector<int>()),
        sum_relays_(group, world_->ranks_per_process(),
                    machines.add_on_machines ? machines.of_process : std::vector<int>()),
        meter_(&world_->meter_of(group.world_rank() % world_->ranks_per_process())),
        staging_(group.staging) {
    const int here = world_->ranks_per_process();
    const auto machine_of = [&](int rank) {
      const auto process = static_cast<std::size_t>(rank / here);
      return machines.of_process.empty() ? 0 : machines.of_process[process];
    };
    const Tags tags(here);
    for (const int other : ranks_) {
      const int mine = group.world_rank() % here, theirs = other % here;
      routes_.push_back({.process = other / here,
                         .crosses = machine_of(other) != machine_of(group.world_rank()),
                         .within_process = other / here == group.world_rank() / here,
                         .send_tag = tags.of(group_number, mine, theirs),
                         .receive_tag = tags.of(group_number, theirs, mine)});
    }
  }

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(ranks_.size()); }

  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    check_divides(*this, full, label);
    run(stream, 0, {"all_gather", label, full},
        [this](const Contribution& call) { gather_slices(call); });
  }

  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    check_reduce_scatter(*this, full, out, label);
    run(stream, 1, {"reduce_scatter", reduction_label(*this, label, addends), full},
        [this, out, addends](const Contribution& call) { sum_slices(call, out, addends); });
  }

  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    check_divides(*this, full, label);
    run(stream, 2, {"all_reduce", sum_label(*this, label, tree), full},
        [this, tree](const Contribution& call) {
          // Nobody else is sent this rank's slice of this rank's buffer, so it can take the sum.
          sum_slices(call, slice_of(*this, call.data, rank_), {.tree = tree});
          gather_slices(call);
        });
  }

  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    check_all_to_all(*this, full, out, label);
    run(stream, 5, {"all_to_all", label, full}, [this, out](const Contribution& call) {
      const Tensor own = slice_of(*this, call.data, rank_);
      std::memcpy(slice_of(*this, out, rank_).data, own.data,
                  static_cast<std::size_t>(own.bytes()));
      MpiTransfers transfers(*world_, routes_, meter_);
      for_others([&](int peer) {
        const Tensor theirs = slice_of(*this, call.data, peer);
        transfers.send(peer, theirs.data, theirs.bytes());
      });
      for_others([&](int peer) {
        const Tensor theirs = slice_of(*this, out, peer);
        transfers.receive(peer, theirs.data, theirs.bytes());
      });
      finish(transfers, call);
    });
  }

  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    check_all_to_all_v(*this, sends, receives, from, to, label);
    run(stream, 6, {"all_to_all_v", label, from},
        [this, sends, to, receives](const Contribution& call) {
          const auto part_for = [&](int peer) {
            const ElementRange& range = sends[static_cast<std::size_t>(peer)];
            return call.data.part(range.first, range.count);
          };
          const auto part_from = [&](int peer) {
            const ElementRange& range = receives[static_cast<std::size_t>(peer)];
            return to.part(range.first, range.count);
          };
          std::memcpy(part_from(rank_).data, part_for(rank_).data,
                      static_cast<std::size_t>(part_for(rank_).bytes()));
          MpiTransfers transfers(*world_, routes_, meter_);
          for_others([&](int peer) {
            if (part_for(peer).numel == 0) return;
            transfers.send(peer, part_for(peer).data, part_for(peer).bytes());
          });
          for_others([&](int peer) {
            if (part_from(peer).numel == 0) return;
            transfers.receive(peer, part_from(peer).data, part_from(peer).bytes());
          });
          finish(transfers, call);
        });
  }

  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    check_root(*this, root);
    run(stream, 3, {"broadcast", label, data, root}, [this](const Contribution& call) {
      MpiTransfers transfers(*world_, routes_, meter_);
      if (rank_ != call.root) {
        transfers.receive(call.root, call.data.data, call.data.bytes());
      } else {
        for_others([&](int peer) { transfers.send(peer, call.data.data, call.data.bytes()); });
      }
      finish(transfers, call);
    });
  }

  void barrier(Stream& stream, const std::string& label) override {
    run(stream, 4, {"barrier", label}, [](const Contribution&) {});
  }

  void abort(const std::string& reason) override { world_->links().abort(reason); }

 private:
  using Body = std::function<void(const Contribution&)>;

  void run(Stream& stream, int number, Contribution call, Body body) {
    stream.run(std::string(call.collective) + " " + call.label,
               [this, number, call = std::move(call), body = std::move(body)] {
                 const MpiWorld::Collective collective(*world_);
                 announce(number, call);
                 body(call);
               });
  }

  // Each rank begins with another peer, so that not all send to the same one.
  template <class Call>
  void for_others(const Call& call) const {
    for (int offset = 1; offset < world_size(); ++offset) call((rank_ + offset) % world_size());
  }

  void finish(MpiTransfers& transfers, const Contribution& call) const {
    transfers.wait([&](const std::vector<int>& peers) {
      std::vector<int> missing;
      for (const int peer : peers) missing.push_back(ranks_[static_cast<std::size_t>(peer)]);
      return waited_text(ranks_[static_cast<std::size_t>(rank_)], world_->timeout(), missing, call);
    });
  }

  // Returns when every rank has come to this collective, and has called the same.
  void announce(int number, const Contribution& call) {
    std::vector<Announcement> all(ranks_.size());
    Announcement& mine = all[static_cast<std::size_t>(rank_)];
    mine = Announcement(number, call);
    MpiTransfers transfers(*world_, routes_, nullptr);
    for_others([&](int peer) {
      transfers.receive(peer, &all[static_cast<std::size_t>(peer)], sizeof(Announcement));
    });
    for_others([&](int peer) { transfers.send(peer, &mine, sizeof mine); });
    finish(transfers, call);
    for (std::size_t other = 1; other < all.size(); ++other) {
      if (all[other].agrees(all[0])) continue;
      abort(disagreement_text(ranks_[0], all[0].contribution(), ranks_[other],
                              all[other].contribution()));
      world_->throw_if_aborted();
    }
  }

  void gather_slices(const Contribution& call) const {
    const Tensor mine = slice_of(*this, call.data, rank_);
    {
      MpiTransfers transfers(*world_, routes_, meter_);
      for_others([&](int peer) {
        if (relays_.between(rank_, peer) != peer) return;
        transfers.send(peer, mine.data, mine.bytes());
      });
      for_others([&](int peer) {
        if (relays_.between(peer, rank_) != rank_) return;
        const Tensor theirs = slice_of(*this, call.data, peer);
        transfers.receive(peer, theirs.data, theirs.bytes());
      });
      finish(transfers, call);
    }
    if (relays_.any()) pass_on_slices(call);
  }

  // What has come from other machines, inside of this one.
  void pass_on_slices(const Contribution& call) const {
    MpiTransfers transfers(*world_, routes_, meter_);
    for (const bool sending : {true, false}) {
      for (int owner = 0; owner < world_size(); ++owner) {
        if (owner == rank_ || relays_.are_neighbours(owner, rank_)) continue;
        const int relay = relays_.between(owner, rank_);
        const Tensor theirs = slice_of(*this, call.data, owner);
        if (!sending && relay != rank_) transfers.receive(relay, theirs.data, theirs.bytes());
        for_others([&](int peer) {
          if (!sending || relay != rank_ || !relays_.are_neighbours(rank_, peer)) return;
          transfers.send(peer, theirs.data, theirs.bytes());
        });
      }
    }
    finish(transfers, call);
  }

  // Piece by piece: while one is added, the next one arrives in the other half of the staging
  // memory.
  void sum_slices(const Contribution& call, Tensor out, const Addends& addends) {
    if (staging_.numel == 0 && world_size() > 1) take_staging();
    if (sum_relays_.even() && addends.tree == 1 && addends.num_ranks == 0) {
      return sum_by_machines(
          {.full = call.data,
           .out = out,
           .onto_out = addends.onto_out,
           .rank = rank_,
           .staging = staging_},
          sum_relays_, [this] { return std::make_unique<MpiTransfers>(*world_, routes_, meter_); },
          [&](MpiTransfers& transfers) { finish(transfers, call); });
    }
    const std::int64_t element = static_cast<std::int64_t>(size_of(call.data.dtype));
    const std::int64_t others = world_size() - 1;
    const std::int64_t piece =
        others == 0 ? out.numel : staging_.bytes() / (2 * others) / 64 * 64 / element;
    MpiTransfers first(*world_, routes_, meter_), second(*world_, routes_, meter_);
    MpiTransfers* under_way[] = {&first, &second};
    const auto begin = [&](std::int64_t number) {
      const std::int64_t at = number * piece, count = std::min(piece, out.numel - at);
      MpiTransfers& transfers = *under_way[number % 2];
      for_others([&](int peer) {
        if (!addends.contains(rank_)) return;
        const Tensor theirs = slice_of(*this, call.data, peer).part(at, count);
        transfers.send(peer, theirs.data, theirs.bytes());
      });
      for_others([&](int peer) {
        if (!addends.contains(peer)) return;
        transfers.receive(peer, staged(number, peer, piece * element), count * element);
      });
    };
    const std::int64_t num_pieces = (out.numel + piece - 1) / std::max<std::int64_t>(piece, 1);
    if (num_pieces > 0) begin(0);
    for (std::int64_t number = 0; number < num_pieces; ++number) {
      if (number + 1 < num_pieces) begin(number + 1);
      finish(*under_way[number % 2], call);
      const std::int64_t at = number * piece, count = std::min(piece, out.numel - at);
      std::vector<ConstTensor> inputs;
      for (int r = 0; r < world_size(); ++r) {
        if (!addends.contains(r)) continue;
        inputs.push_back(r == rank_
                             ? slice_of(*this, call.data, rank_).part(at, count)
                             : Tensor{staged(number, r, piece * element), call.data.dtype, count});
      }
      add_up_on_host(inputs, out.part(at, count), addends);
    }
  }

  // Where piece `number` of a peer waits.
  char* staged(std::int64_t number, int peer, std::int64_t piece_bytes) const {
    const std::int64_t row = peer - (peer > rank_ ? 1 : 0);
    return static_cast<char*>(staging_.data) +
           ((number % 2) * (world_size() - 1) + row) * piece_bytes;
  }

  void take_staging() {
    own_staging_.resize(static_cast<std::size_t>(mpi_staging_bytes(world_size())));
    staging_ = {own_staging_.data(), DType::kU8, static_cast<std::int64_t>(own_staging_.size())};
  }

  const std::shared_ptr<MpiWorld> world_;
  const std::vector<int> ranks_;
  const int rank_;
  const MachineRelays relays_, sum_relays_;  // of gathers, and of sums
  std::vector<MpiRoute> routes_;             // to every member
  LinkMeter* const meter_;
  Tensor staging_;
  std::vector<char> own_staging_;
};

class MpiRendezvous final : public Rendezvous {
 public:
  MpiRendezvous(MPI_Comm comm, ControlLinks& links, int ranks_per_process,
                std::chrono::milliseconds timeout, MachinesOfProcesses machines)
      : world_(std::make_shared<MpiWorld>(comm, links, ranks_per_process, timeout)),
        machines_(std::move(machines)) {
    world_->watch_aborts();
  }

  std::unique_ptr<Communicator> join(const Group& group) override {
    world_->throw_if_aborted();
    const std::uint32_t number =
        numbers_.number_of(group, Tags(world_->ranks_per_process()).num_groups());
    return std::make_unique<MpiCommunicator>(world_, group, number, machines_);
  }
  void abort(const std::string& reason) override { world_->links().abort(reason); }
  std::optional<LinkBytes> sent_by(int rank) const override {
    return world_->meter_of(rank % world_->ranks_per_process()).sent();
  }

 private:
  const std::shared_ptr<MpiWorld> world_;
  const MachinesOfProcesses machines_;
  GroupNumbers numbers_;
};

}  // namespace

std::shared_ptr<Rendezvous> make_mpi_rendezvous(MPI_Comm comm, ControlLinks& links,
                                                int ranks_per_process,
                                                std::chrono::milliseconds timeout,
                                                const MachinesOfProcesses& machines) {
  return std::make_shared<MpiRendezvous>(comm, links, ranks_per_process, timeout, machines);
}

std::int64_t mpi_staging_bytes(int group_size) {
  return std::max(kStaging, 2 * kShortestPiece * (group_size - 1));
}

}  // namespace sherd::sharding
