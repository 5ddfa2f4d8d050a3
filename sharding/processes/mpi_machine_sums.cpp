#include "sharding/processes/mpi_machine_sums.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "kernels/pointwise.h"

namespace sherd::sharding {
namespace {

class Sum {
 public:
  Sum(const MachineSum& what, const MachineRelays& relays,
      const std::function<std::unique_ptr<MpiTransfers>()>& new_transfers,
      const std::function<void(MpiTransfers&)>& finish)
      : what_(what), relays_(relays), new_transfers_(new_transfers), finish_(finish) {
    SHERD_CHECK(relays.even(), "sums of machines that have not equally many ranks");
    for (int member = 0; member < relays.size(); ++member) {
      if (relays.are_neighbours(member, what.rank)) {
        if (member != what.rank) neighbours_.push_back(member);
      } else if (relays.between(member, what.rank) == what.rank) {
        relayed_.push_back(member);
      }
    }
    // Slots for one piece, equally many on every rank: neighbours' contributions to each slice,
    // sums on their way to owners, and the machines' sums.
    num_slots_ = static_cast<std::int64_t>((neighbours_.size() + 1) * (relayed_.size() + 1) +
                                           relays.machines().size());
    piece_ = what.staging.bytes() / (2 * 4 * num_slots_) / kAlignment * kAlignment;
    SHERD_CHECK(piece_ > 0, "{} B of staging for sums of {} ranks", what.staging.bytes(),
                relays.size());
    num_pieces_ = (what.out.numel + piece_ - 1) / piece_;
  }

  void run() {
    const auto outgoing = new_transfers_();
    send_to_neighbours(*outgoing);
    if (num_pieces_ > 0) receive_from_neighbours(0);
    for (std::int64_t number = 0; number < num_pieces_; ++number) {
      exchange_with_machines(number);
      if (number > 0) add_machines(number - 1);
      if (number + 1 < num_pieces_) receive_from_neighbours(number + 1);
    }
    if (num_pieces_ > 0) add_machines(num_pieces_ - 1);
    for (Piece& piece : pieces_) {
      if (piece.crossing) finish_(*piece.crossing);
    }
    finish_(*outgoing);
  }

 private:
  static constexpr std::int64_t kAlignment = 16;

  // Two of them are in progress at a time: while one crosses, the next is collected on the machine.
  struct Piece {
    std::int64_t at = 0, count = 0;
    std::unique_ptr<MpiTransfers> from_neighbours, from_machines, crossing;
    std::vector<std::pair<int, Tensor>> of_neighbours;  // by owner, in the order of `neighbours_`
    std::vector<Tensor> of_machines;                    // f32, of each but this one
    std::int64_t used = 0;                              // slots
  };

  std::int64_t count_of(std::int64_t number) const {
    return std::min(piece_, what_.out.numel - number * piece_);
  }
  Tensor part_of(int owner, std::int64_t number) const {
    return what_.full.part(owner * what_.out.numel + number * piece_, count_of(number));
  }
  Tensor slot(std::int64_t number, DType dtype) {
    Piece& piece = piece_of(number);
    SHERD_CHECK(piece.used < num_slots_, "more is staged than planned");
    char* const begin = static_cast<char*>(what_.staging.data) +
                        ((number % 2) * num_slots_ + piece.used++) * piece_ * 4;
    return {begin, dtype, piece.count};
  }

  // Senders and receivers go through pieces, and within a piece through owners, in the same order:
  // first owners on other machines whose relay the receiver is, then the receiver itself.
  void send_to_neighbours(MpiTransfers& outgoing) const {
    for (std::int64_t number = 0; number < num_pieces_; ++number) {
      for (const bool elsewhere : {true, false}) {
        for (int owner = 0; owner < relays_.size(); ++owner) {
          if (owner == what_.rank || relays_.are_neighbours(owner, what_.rank) == elsewhere)
            continue;
          const int to = elsewhere ? relays_.between(owner, what_.rank) : owner;
          if (to == what_.rank) continue;
          const Tensor part = part_of(owner, number);
          outgoing.send(to, part.data, part.bytes());
        }
      }
    }
  }

  Piece& piece_of(std::int64_t number) { return pieces_[static_cast<std::size_t>(number % 2)]; }

  void receive_from_neighbours(std::int64_t number) {
    Piece& piece = piece_of(number);
    if (piece.crossing) finish_(*piece.crossing);  // what leaves these slots
    piece = {.at = number * piece_,
             .count = count_of(number),
             .from_neighbours = new_transfers_(),
             .from_machines = new_transfers_(),
             .crossing = new_transfers_(),
             .of_neighbours = {},
             .of_machines = {}};
    const auto receive_slice_of = [&](int owner) {
      for (const int neighbour : neighbours_) {
        const Tensor theirs = slot(number, what_.full.dtype);
        piece.from_neighbours->receive(neighbour, theirs.data, theirs.bytes());
        piece.of_neighbours.emplace_back(owner, theirs);
      }
    };
    for (const int owner : relayed_) receive_slice_of(owner);
    receive_slice_of(what_.rank);
  }

  void exchange_with_machines(std::int64_t number) {
    Piece& piece = piece_of(number);
    finish_(*piece.from_neighbours);
    for (const int owner : relayed_) {
      const Tensor sum = slot(number, DType::kF32);
      add_in_order(added(piece, owner), sum, false);
      piece.crossing->send(owner, sum.data, sum.bytes());
    }
    for (const auto& [machine, members] : relays_.machines()) {
      if (machine == relays_.machine_of(what_.rank)) continue;
      const Tensor theirs = slot(number, DType::kF32);
      const int relay = relays_.between(what_.rank, members.front());
      piece.from_machines->receive(relay, theirs.data, theirs.bytes());
      piece.of_machines.push_back(theirs);
    }
  }

  // Contributions of this machine's ranks to a piece of `owner`'s slice, in rank order.
  std::vector<ConstTensor> added(const Piece& piece, int owner) const {
    std::vector<ConstTensor> inputs;
    for (const auto& [of, theirs] : piece.of_neighbours) {
      if (of == owner) inputs.push_back(theirs);
    }
    const auto before = std::ranges::lower_bound(neighbours_, what_.rank) - neighbours_.begin();
    inputs.insert(inputs.begin() + before,
                  what_.full.part(owner * what_.out.numel + piece.at, piece.count));
    return inputs;
  }

  void add_machines(std::int64_t number) {
    Piece& piece = piece_of(number);
    finish_(*piece.from_machines);
    const Tensor own = slot(number, DType::kF32);
    add_in_order(added(piece, what_.rank), own, false);
    std::vector<ConstTensor> sums;
    auto other = piece.of_machines.begin();
    for (const auto& [machine, members] : relays_.machines()) {
      sums.push_back(machine == relays_.machine_of(what_.rank) ? own : *other++);
    }
    add_in_order(sums, what_.out.part(piece.at, piece.count), what_.onto_out);
  }

  static void add_in_order(const std::vector<ConstTensor>& inputs, const Tensor& out,
                           bool onto_out) {
    kernels::sum_in_order_on_host(inputs.data(), static_cast<int>(inputs.size()), out, onto_out);
  }

  const MachineSum& what_;
  const MachineRelays& relays_;
  const std::function<std::unique_ptr<MpiTransfers>()>& new_transfers_;
  const std::function<void(MpiTransfers&)>& finish_;
  std::vector<int> neighbours_, relayed_;  // owners elsewhere whose relay this rank is
  std::int64_t num_slots_ = 0, piece_ = 0, num_pieces_ = 0;
  std::array<Piece, 2> pieces_;
};

}  // namespace

void sum_by_machines(const MachineSum& sum, const MachineRelays& relays,
                     const std::function<std::unique_ptr<MpiTransfers>()>& new_transfers,
                     const std::function<void(MpiTransfers&)>& finish) {
  Sum(sum, relays, new_transfers, finish).run();
}

}  // namespace sherd::sharding
