// Ring attention of context ranks: who has which positions, which halves each computes, and in what order it passes them
// on; losses and every gradient near those of one device that holds everything.
#include "engine/model/attention/ring.h"

#include <algorithm>
#include <mutex>

#include "engine/model/cut/sequence_cut.h"
#include "tests/engine/model/cut_case.h"

namespace sherd::testing {
namespace {

using model::HalfPair;
using model::ModelShape;

ModelShape ringed(ModelShape shape, std::int64_t seq_length) {
  shape.seq_length = seq_length;
  shape.max_positions = seq_length + 1;
  shape.context.method = model::ContextMethod::kRing;
  return shape;
}

// The positions of context rank `rank`, as the papers on zigzag rings have them.
std::vector<std::int64_t> positions_of(std::int64_t seq_length, int degree, int rank) {
  const std::int64_t half = seq_length / (2 * degree);
  std::vector<std::int64_t> positions;
  for (const int which : {rank, 2 * degree - 1 - rank}) {
    for (std::int64_t i = 0; i < half; ++i) positions.push_back(which * half + i);
  }
  return positions;
}

TEST(Ring, EachRankHasAHalfFromEitherEndOfTheSequence) {
  for (const int degree : {2, 3, 4, 8}) {
    const ModelShape whole = ringed(tiny_model(false), 48);
    for (int rank = 0; rank < degree; ++rank) {
      const ModelShape part = model::context_part(whole, degree, rank);
      std::vector<std::int64_t> runs;
      for (int run = 0; run < part.position_runs(); ++run) {
        const auto [first, count] = part.position_run(run);
        for (std::int64_t i = 0; i < count; ++i) runs.push_back(first + i);
      }
      const std::vector<std::int64_t> expected = positions_of(48, degree, rank);
      EXPECT_EQ(runs, expected);
      EXPECT_EQ(part.first_position() + part.seq_length / 2 + part.position_gap(),
                expected[expected.size() / 2]);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const ModelShape::Place place = part.place_of(expected[i]);
        EXPECT_EQ(place.context_rank, rank);
        EXPECT_EQ(place.token, static_cast<std::int64_t>(i));
      }
    }
  }
}

// Against the mask of every position.
TEST(Ring, ARankComputesTheHalvesOfWhichItSeesSomethingAndNoOthers) {
  constexpr std::int64_t kHalf = 3;
  for (const int degree : {2, 3, 4}) {
    const ModelShape whole = ringed(tiny_model(false), 2 * degree * kHalf);
    for (std::int64_t window = 0; window <= whole.seq_length; ++window) {
      for (int rank = 0; rank < degree; ++rank) {
        const ModelShape part = model::context_part(whole, degree, rank);
        const std::vector<std::int64_t> queries = positions_of(whole.seq_length, degree, rank);
        std::size_t all = 0;
        for (int source = 0; source < degree; ++source) {
          const std::vector<std::int64_t> keys = positions_of(whole.seq_length, degree, source);
          const std::vector<HalfPair> pairs = model::ring_pairs(part, window, source);
          all += pairs.size();
          for (const int q : {0, 1}) {
            for (const int k : {0, 1}) {
              bool sees = false;
              for (std::int64_t i = q * kHalf; i < (q + 1) * kHalf; ++i) {
                for (std::int64_t j = k * kHalf; j < (k + 1) * kHalf; ++j) {
                  const std::int64_t apart =
                      queries[static_cast<std::size_t>(i)] - keys[static_cast<std::size_t>(j)];
                  sees = sees || (apart >= 0 && (window == 0 || apart < window));
                }
              }
              EXPECT_EQ(std::ranges::count(pairs, HalfPair{q, k}), sees ? 1 : 0)
                  << "rank " << rank << " of " << degree << ", keys of " << source << ", halves "
                  << q << " and " << k << ", window " << window;
            }
          }
        }
        // Even work: as many halves on every rank, two of them with half of their scores.
        if (window == 0) {
          EXPECT_EQ(all, static_cast<std::size_t>(2 * degree + 1));
        }
      }
    }
  }
}

// A rank's part of a micro-batch.
MicroBatch own_part(const ModelShape& whole, const MicroBatch& batch, int degree, int rank) {
  MicroBatch own;
  own.pass = batch.pass;
  for (std::int64_t row = 0; row < whole.sequences; ++row) {
    for (const std::int64_t position : positions_of(whole.seq_length, degree, rank)) {
      const auto at = static_cast<std::size_t>(row * whole.seq_length + position);
      own.inputs.push_back(batch.inputs[at]);
      own.targets.push_back(batch.targets[at]);
    }
  }
  return own;
}

// What the ranks of a ring compute together: losses in their places, gradients added up.
Computed compute_in_ring(const ModelShape& whole, int degree, const ValuesByName& weights,
                         const MicroBatch& batch) {
  Computed all;
  all.losses.resize(static_cast<std::size_t>(whole.tokens()), NAN);
  std::mutex mutex;
  run_ranks({.world_size = degree, .axes = {{"context", degree}}}, [&](sharding::Rank& rank) {
    rank.guard([&] {
      const ModelShape part = model::context_part(whole, degree, rank.rank);
      engine::ModelCollectives page(part, rank);
      const Computed own =
          compute(part, weights, own_part(whole, batch, degree, rank.rank), rank.compute(), page);
      const std::lock_guard lock(mutex);
      std::size_t token = 0;
      for (std::int64_t row = 0; row < whole.sequences; ++row) {
        for (const std::int64_t position : positions_of(whole.seq_length, degree, rank.rank)) {
          all.losses[static_cast<std::size_t>(row * whole.seq_length + position)] =
              own.losses[token++];
        }
      }
      for (const auto& [name, values] : own.gradients) {
        std::vector<float>& sum = all.gradients[name];
        sum.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
      }
    });
  });
  return all;
}

void expect_near_whole(const ModelShape& whole, const std::vector<int>& degrees,
                       const std::string& label) {
  const ValuesByName weights = weights_of(whole);
  const MicroBatch batch = micro_batch_of(whole);
  const Computed one = compute_whole(whole, weights, batch);
  const Noise noise = noise_of(whole, weights, batch, one);
  for (const int degree : degrees) {
    SCOPED_TRACE(fmt::format("{}, {} ranks", label, degree));
    const Computed ring = compute_in_ring(whole, degree, weights, batch);
    EXPECT_LE(farthest(ring.losses, one.losses), Noise::kRoundings * noise.losses);
    for (const auto& [name, values] : one.gradients) {
      EXPECT_LE(farthest(ring.gradients.at(name), values),
                Noise::kRoundings * noise.gradients.at(name))
          << name;
    }
  }
}

// Learned positions and rotary ones, dropout of activations and of attention, windows, soft caps, grouped heads,
// norms of queries and keys, blocks side by side. No farther from one device than where weights that move by one unit in
// the last place take it.
TEST(Ring, EveryFormHasTheLossesAndGradientsOfOneDeviceNearly) {
  for (const ModelForm& form : cuttable_forms()) {
    expect_near_whole(ringed(form.shape, 24), {2, 3, 4}, form.name);
  }
}

TEST(Ring, RecomputedBlocksAnd16BitsToo) {
  for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ModelShape shape = ringed(cuttable(tiny_model(dtype == DType::kF32), 2), 24);
      shape.recompute = recompute;
      shape.dtype = dtype;
      shape.sequences = 3;
      expect_near_whole(shape, {3}, fmt::format("{}", sherd::name_of(dtype)));
    }
  }
}

/// Records what is passed on, and that no rank waits for it while attention could be computed.
class Noting final : public model::Collectives {
 public:
  explicit Noting(std::vector<std::string>& calls) : calls_(calls) {}
  void sum(const char*, const Tensor&) override {}
  void sum_copies(const char*, const Tensor&) override {}
  void reduce_scatter(const char*, const Tensor&, const Tensor&) override {}
  void gather(const char*, const Tensor&) override {}
  void all_to_all(const char*, const Tensor&, const Tensor&) override {}
  void gather_positions(const char*, const Tensor&) override {}
  void gather_counts(const char*, const Tensor&) override {}
  void exchange_rows(const char*, const Tensor&, const std::vector<ElementRange>&, const Tensor&,
                     const std::vector<ElementRange>&) override {}
  void reduce_scatter_positions(const char*, const Tensor&, const Tensor&) override {}
  void pass_on(const char* what, const Tensor& from, const Tensor& to) override {
    EXPECT_NE(from.data, to.data);
    EXPECT_EQ(from.numel, to.numel);
    std::fill_n(static_cast<char*>(to.data), to.bytes(), 0);
    calls_.push_back(std::string(what).starts_with("gradients") ? "gradients go" : "keys go");
  }
  void await_rows() override {}
  void await_passed() override { calls_.push_back("wait"); }
  void await_sent() override { calls_.push_back("wait for sends"); }

 private:
  std::vector<std::string>& calls_;
};

// The middle one of three ranks, in one layer. Between each transfer's begin and the wait for it there is attention: waits
// are for the transfer that began first.
TEST(Ring, ATransferBeginsBeforeTheAttentionUnderWhichItIsMade) {
  ModelShape whole = ringed(cuttable(tiny_model(false), 4), 24);
  whole.num_layers = 1;
  const ModelShape part = model::context_part(whole, 3, 1);
  std::vector<std::string> calls;
  StreamOptions options;
  bool inside = false;  // of a piece of work, which has a boundary on either side
  options.hook = [&](std::string_view, std::string_view label) {
    if (!label.starts_with("attention")) return;
    if (!inside) calls.emplace_back(label == "attention_forward" ? "forward" : "backward");
    inside = !inside;
  };
  const auto stream = make_cpu_compute_stream(options);
  Noting page(calls);
  const MicroBatch batch = micro_batch_of(whole);
  compute(part, weights_of(whole), own_part(whole, batch, 3, 1), *stream, page);
  const std::vector<std::string> expected{
      // its own keys, those of rank 0, those of rank 2
      "keys go", "forward", "forward", "forward", "wait", "keys go", "forward", "forward", "wait",
      "forward", "forward", "wait for sends",
      // the same, but a pair of its own halves comes last
      "keys go", "backward", "backward", "wait", "keys go", "backward", "backward", "gradients go",
      "wait", "backward", "backward", "wait", "gradients go", "backward", "wait", "wait for sends"};
  EXPECT_EQ(calls, expected);
}

// Of keys and values a rank has two ranks' parts at a time, and never those of all positions; 4 ranks, 3 sequences of 6
// positions each, 2 heads of width 6 as keys and values: 24 numbers per position.
TEST(Ring, BuffersHoldTwoRanksKeysAndThreeRanksGradients) {
  ModelShape whole = ringed(cuttable(tiny_model(false), 2), 24);
  whole.sequences = 3;
  whole.dtype = DType::kBF16;
  std::map<std::string, std::int64_t> bytes;
  model::Activations activations(
      model::context_part(whole, 4, 2), kernels::compute_device(*make_cpu_compute_stream({})),
      [&](const BufferSpec& spec) {
        if (spec.name.find("key") != std::string::npos || spec.name.starts_with("ring")) {
          bytes[spec.name] = spec.bytes();
        }
        return Buffer();
      });
  const std::int64_t keys = 3 * 6 * 24, queries = 3 * 6 * 8 * 6;
  const std::map<std::string, std::int64_t> expected{
      {"ring.keys_values.0", 2 * keys},   {"ring.keys_values.1", 2 * keys},
      {"ring.d_keys_values.0", 4 * keys}, {"ring.d_keys_values.1", 4 * keys},
      {"ring.d_keys_values.2", 4 * keys}, {"d_keys_and_values", 4 * keys},
      {"ring.sum", 4 * queries}};
  EXPECT_EQ(bytes, expected);
}

// PARALLELISM.md A.2, by hand: keys and values of 2 heads of width 6 are 24 numbers per position. Each of 4 ranks sends
// those of 3 positions of 2 sequences 3 times, in 2 layers: in the forward, again in the backward, and as f32 gradients.
TEST(Ring, KeysAndValuesGoRoundTwiceAndTheirGradientsOnce) {
  ModelShape whole = ringed(cuttable(tiny_model(false), 2), 24);
  whole.dtype = DType::kBF16;
  const ModelShape part = model::context_part(whole, 4, 1);
  const auto traffic = engine::exchange_traffic(
      part, model::exchanges(part, DeviceKind::kCpu, DType::kF32, model::PassKind::kTraining),
      {.next = 2, .previous = 0});
  std::map<std::pair<std::string, int>, std::pair<std::int64_t, std::int64_t>> sent;
  for (const sharding::Sent& line : traffic.sent()) {
    sent[{line.label, line.callers.peer.value()}] = {line.calls, line.bytes};
  }
  const std::int64_t numbers = 2 * 3 * (2 * 6 * 24);
  const decltype(sent) expected{{{"keys and values", 2}, {6, numbers * 2}},
                                {{"keys and values", 0}, {6, 0}},
                                {{"keys and values, again", 2}, {6, numbers * 2}},
                                {{"keys and values, again", 0}, {6, 0}},
                                {{"gradients of passed keys and values", 2}, {6, numbers * 4}},
                                {{"gradients of passed keys and values", 0}, {6, 0}}};
  EXPECT_EQ(sent, expected);
}

}  // namespace
}  // namespace sherd::testing
