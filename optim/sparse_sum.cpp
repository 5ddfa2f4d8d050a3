#include "optim/sparse_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/pointwise.h"
#include "kernels/sparse.h"
#include "optim/low_rank_sum.h"

namespace sherd::optim {
namespace {

using kernels::entry_bytes;
using kernels::num_chosen;

constexpr std::int64_t kSquaresBlock = 64;

struct Range {
  std::int64_t first = 0, count = 0;  // in the unit's flat buffer
};

// What of a unit is sent sparsely, and what whole.
struct UnitRanges {
  std::vector<Range> chunks, whole;
  std::int64_t whole_numel = 0;

  std::int64_t entries(double ratio) const {
    std::int64_t count = 0;
    for (const Range& chunk : chunks) count += num_chosen(ratio, chunk.count);
    return count;
  }
};

UnitRanges ranges_of(const sharding::UnitPlan& unit) {
  if (unit.layout.numel() >= kernels::SparseEntry::kNone) {
    throw UsageError("dgc.compress_ratio: {} has {} elements, too many; leave it out.",
                     unit.spec.name, unit.layout.numel());
  }
  UnitRanges ranges;
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    const std::int64_t offset = unit.layout.offset(static_cast<int>(i)), numel = parameter.numel();
    if (!is_sparse(parameter)) {
      ranges.whole.push_back({offset, numel});
      ranges.whole_numel += numel;
      continue;
    }
    for (const SparseRange& chunk : sparse_chunks(parameter)) {
      ranges.chunks.push_back({offset + chunk.first, chunk.count});
    }
  }
  return ranges;
}

BufferSpec state_buffer(const sharding::UnitPlan& unit, const char* kind) {
  return {unit.spec.name + "." + kind, Category::kOptimizer, DType::kF32, unit.part_numel()};
}

// Units take turns with them.
struct Shared {
  std::optional<BufferSpec> full, whole, squares, sent, received;

  std::vector<BufferSpec> list() const {
    std::vector<BufferSpec> list;
    for (const auto* buffer : {&full, &whole, &squares, &sent, &received}) {
      if (*buffer) list.push_back(**buffer);
    }
    return list;
  }
};

Shared shared_buffers(const SparseOptions& options, const std::vector<sharding::UnitPlan>& units,
                      int num_micro_steps) {
  std::int64_t full = 0, whole = 0, squares = 0, sent = 0, received = 0;
  for (const sharding::UnitPlan& unit : units) {
    const UnitRanges ranges = ranges_of(unit);
    if (ranges.chunks.empty()) continue;
    if (unit.num_parts > 1) full = std::max(full, unit.layout.numel());
    whole = std::max(whole, ReplicaLinks::padded(unit, ranges.whole_numel));
    if (options.clip == LocalClip::kNorm) {
      squares = std::max(squares, unit.layout.numel() / kSquaresBlock);
    }
    // Most entries are sent in the first epoch.
    const std::int64_t entries = ReplicaLinks::padded(unit, ranges.entries(options.ratio_in(0)));
    sent = std::max(sent, entry_bytes(entries));
    if (unit.num_replicas > 1) {
      received = std::max(received, entry_bytes(entries) * unit.num_replicas);
    }
  }
  Shared shared;
  const auto add = [&](std::optional<BufferSpec>& buffer, const char* name, DType dtype,
                       std::int64_t numel) {
    if (numel == 0) return;
    buffer = {name, Category::kCommunication, dtype, numel, phases_of_sums(num_micro_steps)};
  };
  add(shared.full, "dgc.full", DType::kF32, full);
  add(shared.whole, "dgc.whole", DType::kF32, whole);
  add(shared.squares, "dgc.squares", DType::kF64, squares);
  add(shared.sent, "dgc.sent", DType::kU8, sent);
  add(shared.received, "dgc.received", DType::kU8, received);
  return shared;
}

class SparseSum final : public CompressedSum {
 public:
  SparseSum(const SparseOptions& options, const sharding::Rank& rank,
            const std::vector<sharding::UnitState>& units, int num_micro_steps)
      : options_(options), rank_(&rank), units_(&units), links_(rank, units) {
    const Shared shared = shared_buffers(options, sharding::plans_of(units), num_micro_steps);
    full_ = rank.acquire(shared.full);
    whole_ = rank.acquire(shared.whole);
    squares_ = rank.acquire(shared.squares);
    sent_ = rank.acquire(shared.sent);
    received_ = rank.acquire(shared.received);
    for (const sharding::UnitState& unit : units) {
      ranges_.push_back(ranges_of(unit.plan()));
      const bool any = !ranges_.back().chunks.empty();
      const bool moves = unit.trains() && has_velocity(options);
      errors_.push_back(any ? rank.acquire(state_buffer(unit.plan(), kErrorKind)) : Buffer());
      velocities_.push_back(moves ? rank.acquire(state_buffer(unit.plan(), kVelocityKind))
                                  : Buffer());
    }
    begin();
  }

  void begin() override {
    for (const auto* buffers : {&errors_, &velocities_}) {
      for (const Buffer& buffer : *buffers) {
        if (buffer) kernels::fill_zero(rank_->compute(), buffer);
      }
    }
  }

  void begin_step(std::int64_t /*step*/, std::int64_t epoch, bool has_targets) override {
    has_targets_ = has_targets;
    ratio_ = options_.ratio_in(epoch);
  }

  void add(Stream& stream, int unit, const Tensor& part) override {
    if (!has_targets_) return;
    const UnitRanges& ranges = ranges_[static_cast<std::size_t>(unit)];
    if (ranges.chunks.empty()) {
      links_.sum_plainly(stream, unit, part);
      return move(stream, unit, part);
    }
    accumulate(stream, unit, part);
    const Tensor full = links_.gather(stream, unit, part, full_ ? full_.tensor() : Tensor{});
    const Tensor entries = choose(stream, unit, full);
    const Tensor whole = sum_whole(stream, unit, full);
    const Tensor all = exchange(stream, unit, entries);
    kernels::fill_zero(stream, part);
    add_all(stream, unit, all, part);
    std::int64_t before = 0;
    for (const Range& range : ranges.whole) {
      here(unit, range, [&](std::int64_t first, std::int64_t count, std::int64_t position) {
        const Tensor from = whole.part(before + first, count);
        stream.copy(from.data, part.part(position, count).data, from.bytes());
      });
      before += range.count;
    }
    move(stream, unit, part);
  }

  std::vector<MomentPiece> own_pieces() const override {
    std::vector<MomentPiece> pieces = pieces_of(errors_, kErrorKind, true);
    const std::vector<MomentPiece> more = pieces_of(velocities_, kVelocityKind, true);
    pieces.insert(pieces.end(), more.begin(), more.end());
    return pieces;
  }
  std::vector<MomentPiece> shared_pieces() const override {
    return pieces_of(velocities_, kVelocityKind, false);
  }

 private:
  std::vector<MomentPiece> pieces_of(const std::vector<Buffer>& buffers, const char* kind,
                                     bool sparse) const {
    std::vector<MomentPiece> pieces;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const sharding::UnitState& unit = (*units_)[i];
      if (!buffers[i]) continue;
      for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
        const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
        if (is_sparse(parameter) != sparse) continue;
        pieces.push_back({kind, unit.own_slice(), parameter.index, piece.first_element,
                          buffers[i].tensor().part(piece.position, piece.count)});
      }
    }
    return pieces;
  }

  // The elements of `range` that this rank has: calls use(first one in the range, number, in part).
  template <class Use>
  void here(int unit, const Range& range, Use&& use) const {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    const std::int64_t begin = state.own_part() * state.plan().part_numel();
    const std::int64_t from = std::max(range.first, begin);
    const std::int64_t to = std::min(range.first + range.count, begin + state.plan().part_numel());
    if (from < to) use(from - range.first, to - from, from - begin);
  }

  // Adds the gradient to u and v, of which v is then in the part.
  void accumulate(Stream& stream, int unit, const Tensor& part) {
    const auto i = static_cast<std::size_t>(unit);
    const sharding::UnitState& state = (*units_)[i];
    const auto replicas = static_cast<double>(state.plan().num_replicas);
    const bool by_norm = options_.clip == LocalClip::kNorm;
    Tensor squares;
    if (by_norm) {
      const std::int64_t blocks = part.numel / kSquaresBlock;
      squares = squares_.tensor().part(0, blocks * state.plan().num_parts);
      kernels::squares_of_blocks(stream, part, squares.part(state.own_part() * blocks, blocks));
      if (state.plan().num_parts > 1) {
        links_.group(unit).all_gather(stream, state.name(), squares);
      }
    }
    for (const sharding::Piece& piece : state.layout().pieces(state.own_slice())) {
      const ParameterSpec& parameter = state.spec().parameters[piece.parameter];
      if (!is_sparse(parameter)) continue;
      const auto of = [&](const Buffer& buffer) {
        return buffer ? buffer.tensor().part(piece.position, piece.count) : Tensor{};
      };
      kernels::SparseAccumulation args{.gradient = part.part(piece.position, piece.count),
                                       .momentum = static_cast<float>(options_.momentum),
                                       .velocity = of(velocities_[i]),
                                       .error = of(errors_[i])};
      if (by_norm) {
        const std::int64_t first = state.layout().offset(piece.parameter) / kSquaresBlock;
        const std::int64_t count = (parameter.numel() + kSquaresBlock - 1) / kSquaresBlock;
        args.squares = squares.part(first, count);
        args.bound = options_.clip_threshold / std::sqrt(replicas) / replicas;
      } else if (options_.clip == LocalClip::kValue) {
        args.limit = static_cast<float>(options_.clip_threshold / replicas);
      }
      kernels::accumulate_sparsely(stream, args);
      kernels::cast(stream, of(errors_[i]), part.part(piece.position, piece.count));
    }
  }

  // The entries of all chunks. What this rank has of them is no longer an error.
  Tensor choose(Stream& stream, int unit, const Tensor& full) {
    const auto i = static_cast<std::size_t>(unit);
    const sharding::UnitState& state = (*units_)[i];
    const UnitRanges& ranges = ranges_[i];
    const kernels::SparseRules rules{ratio_, options_.sample_ratio,
                                     static_cast<float>(options_.compress_lower_bound),
                                     static_cast<float>(options_.compress_upper_bound),
                                     static_cast<int>(options_.max_adaptation_iters)};
    const std::int64_t bytes =
        entry_bytes(ReplicaLinks::padded(state.plan(), ranges.entries(ratio_)));
    const Tensor entries = sent_.tensor().part(0, bytes);
    std::int64_t at = 0;
    for (const Range& chunk : ranges.chunks) {
      const std::int64_t size = entry_bytes(num_chosen(ratio_, chunk.count));
      kernels::choose_largest(stream, rules, full.part(chunk.first, chunk.count), chunk.first,
                              entries.part(at, size));
      at += size;
    }
    if (bytes > at) {  // entries without an element
      stream.run("no_entries", [rest = entries.part(at, bytes - at)] {
        std::memset(rest.data, 0xff, static_cast<std::size_t>(rest.numel));
      });
    }
    const std::int64_t begin = state.own_part() * state.plan().part_numel();
    kernels::zero_entries(stream, entries, begin, errors_[i].tensor());
    if (velocities_[i] && options_.momentum_masking) {
      kernels::zero_entries(stream, entries, begin, velocities_[i].tensor());
    }
    return entries;
  }

  Tensor sum_whole(Stream& stream, int unit, const Tensor& full) {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    const UnitRanges& ranges = ranges_[static_cast<std::size_t>(unit)];
    if (ranges.whole_numel == 0) return {};
    const std::int64_t numel = ReplicaLinks::padded(state.plan(), ranges.whole_numel);
    const Tensor whole = whole_.tensor().part(0, numel);
    std::int64_t at = 0;
    for (const Range& range : ranges.whole) {
      const Tensor from = full.part(range.first, range.count);
      stream.copy(from.data, whole.part(at, range.count).data, from.bytes());
      at += range.count;
    }
    if (numel > at) kernels::fill_zero(stream, whole.part(at, numel - at));
    links_.sum(stream, unit, whole);
    return whole;
  }

  // Of each rank of a replica, its share of the entries of each replica.
  Tensor exchange(Stream& stream, int unit, const Tensor& entries) {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    sharding::Communicator* const replicas = links_.replicas(unit);
    if (replicas == nullptr) return entries;
    const int ranks = state.plan().num_parts, count = state.plan().num_replicas;
    const std::int64_t share = entries.numel / ranks;
    const Tensor all = received_.tensor().part(0, entries.numel * count);
    const Tensor shares = all.part(state.own_part() * share * count, share * count);
    const Tensor own = entries.part(state.own_part() * share, share);
    stream.copy(own.data, shares.part(replicas->rank() * share, share).data, own.bytes());
    replicas->all_gather(stream, state.name(), shares);
    if (ranks > 1) links_.group(unit).all_gather(stream, state.name(), all);
    return all;
  }

  void add_all(Stream& stream, int unit, const Tensor& all, const Tensor& part) {
    const sharding::UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
    const std::int64_t begin = state.own_part() * part.numel;
    if (links_.replicas(unit) == nullptr) return kernels::add_entries(stream, all, begin, part);
    const int ranks = state.plan().num_parts, count = state.plan().num_replicas;
    const std::int64_t share = all.numel / ranks / count;
    for (int replica = 0; replica < count; ++replica) {
      for (int rank = 0; rank < ranks; ++rank) {
        kernels::add_entries(stream, all.part((rank * count + replica) * share, share), begin,
                             part);
      }
    }
  }

  // The sums of whole parameters become their velocities.
  void move(Stream& stream, int unit, const Tensor& part) {
    const Buffer& velocities = velocities_[static_cast<std::size_t>(unit)];
    if (!velocities) return;
    for (const Range& range : ranges_[static_cast<std::size_t>(unit)].whole) {
      here(unit, range, [&](std::int64_t, std::int64_t count, std::int64_t position) {
        const Tensor sum = part.part(position, count);
        const Tensor velocity = velocities.tensor().part(position, count);
        stream.run("move", [sum, velocity, momentum = static_cast<float>(options_.momentum)] {
          auto *x = sum.as<float>(), *u = velocity.as<float>();
          for (std::int64_t i = 0; i < sum.numel; ++i) x[i] = u[i] = momentum * u[i] + x[i];
        });
      });
    }
  }

  SparseOptions options_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  ReplicaLinks links_;
  std::vector<UnitRanges> ranges_;           // by unit
  std::vector<Buffer> errors_, velocities_;  // by unit, of this rank's part; may be empty
  Buffer full_, whole_, squares_, sent_, received_;
  double ratio_ = 1.0;
  bool has_targets_ = true;
};

}  // namespace

std::vector<BufferSpec> sparse_buffers(const Compression& options,
                                       const sharding::ShardingPlan& plan, int num_micro_steps) {
  std::vector<BufferSpec> buffers =
      shared_buffers(options.sparse, plan.units, num_micro_steps).list();
  for (const sharding::UnitPlan& unit : plan.units) {
    if (!unit.trains()) continue;
    if (!ranges_of(unit).chunks.empty()) buffers.push_back(state_buffer(unit, kErrorKind));
    if (has_velocity(options.sparse)) buffers.push_back(state_buffer(unit, kVelocityKind));
  }
  return buffers;
}

sharding::Traffic sparse_traffic(const Compression& options, const sharding::ShardingPlan& plan) {
  using sharding::Collective;
  sharding::Traffic traffic;
  for (const sharding::UnitPlan& unit : plan.units) {
    if (!unit.trains()) continue;
    const UnitRanges ranges = ranges_of(unit);
    if (ranges.chunks.empty()) {
      ReplicaLinks::add_plain_traffic(unit, traffic);
      continue;
    }
    if (options.sparse.clip == LocalClip::kNorm && unit.num_parts > 1) {
      traffic.add("norms of gradients", Collective::kAllGather, DType::kF64,
                  unit.layout.numel() / kSquaresBlock, unit.group());
    }
    ReplicaLinks::add_gather_traffic(unit, traffic);
    if (ranges.whole_numel > 0) {
      ReplicaLinks::add_sum_traffic(unit, ReplicaLinks::padded(unit, ranges.whole_numel), traffic);
    }
    if (unit.num_replicas == 1) continue;
    const std::int64_t bytes =
        entry_bytes(ReplicaLinks::padded(unit, ranges.entries(options.sparse.compress_ratio))) *
        unit.num_replicas;
    traffic.add("compressed gradients", Collective::kAllGather, DType::kU8, bytes / unit.num_parts,
                unit.replicas());
    if (unit.num_parts > 1) {
      traffic.add("compressed gradients", Collective::kAllGather, DType::kU8, bytes, unit.group());
    }
  }
  return traffic;
}

std::unique_ptr<CompressedSum> make_sparse_sum(const Compression& options,
                                               const sharding::Rank& rank,
                                               const std::vector<sharding::UnitState>& units,
                                               int num_micro_steps) {
  return std::make_unique<SparseSum>(options.sparse, rank, units, num_micro_steps);
}

}  // namespace sherd::optim
