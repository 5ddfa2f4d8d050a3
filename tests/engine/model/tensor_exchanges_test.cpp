// What the ranks of a cut model exchange: as often as the equations need, as listed beforehand, and nothing where a
// degree can't be.

#include "engine/model/cut/sequence_cut.h"
#include "tests/engine/model/cut_case.h"

namespace sherd::testing {
namespace {

using model::ModelShape;

/// Notes what passes.
class NotingExchanges final : public model::Collectives {
 public:
  using Kind = model::Exchange::Kind;
  explicit NotingExchanges(model::Collectives& inner) : inner_(inner) {}
  void sum(const char* what, const Tensor& x) override {
    note(Kind::kSum, what, x);
    inner_.sum(what, x);
  }
  void sum_copies(const char* what, const Tensor& x) override {
    note(Kind::kSumCopies, what, x);
    inner_.sum_copies(what, x);
  }
  void reduce_scatter(const char* what, const Tensor& x, const Tensor& out) override {
    note(Kind::kReduceScatter, what, x);
    inner_.reduce_scatter(what, x, out);
  }
  void gather(const char* what, const Tensor& x) override {
    note(Kind::kGather, what, x);
    inner_.gather(what, x);
  }
  void all_to_all(const char* what, const Tensor& from, const Tensor& to) override {
    note(Kind::kAllToAll, what, from);
    inner_.all_to_all(what, from, to);
  }
  void gather_positions(const char* what, const Tensor& x) override {
    note(Kind::kGatherPositions, what, x);
    inner_.gather_positions(what, x);
  }
  void reduce_scatter_positions(const char* what, const Tensor& x, const Tensor& out) override {
    note(Kind::kReduceScatterPositions, what, x);
    inner_.reduce_scatter_positions(what, x, out);
  }
  void gather_counts(const char* what, const Tensor& x) override {
    note(Kind::kGatherCounts, what, x);
    inner_.gather_counts(what, x);
  }
  void exchange_rows(const char* what, const Tensor& from, const std::vector<ElementRange>& sends,
                     const Tensor& to, const std::vector<ElementRange>& receives) override {
    note(Kind::kExchangeRows, what, from);
    inner_.exchange_rows(what, from, sends, to, receives);
  }
  void pass_on(const char* what, const Tensor& from, const Tensor& to) override {
    note(Kind::kPassOn, what, from);
    inner_.pass_on(what, from, to);
  }
  void await_rows() override { inner_.await_rows(); }
  void await_passed() override { inner_.await_passed(); }
  void await_sent() override { inner_.await_sent(); }
  /// Calls by kind, name, type and size.
  std::map<std::tuple<Kind, std::string, DType, std::int64_t>, std::int64_t> calls;

 private:
  void note(Kind kind, const char* what, const Tensor& x) {
    ++calls[{kind, what, x.dtype, x.numel}];
  }
  model::Collectives& inner_;
};

// B.4 #24: a cut that exchanges nothing, or too often.
TEST(TensorParallel, ABlockIsTwoSumsForwardAndTwoBackward) {
  const ModelShape whole = cuttable(tiny_model(false), 4);
  const ValuesByName weights = weights_of(whole);
  const MicroBatch batch = micro_batch_of(whole);
  run_tensor_ranks(whole, 4, [&](const ModelShape& part, Stream& stream, model::Collectives& page) {
    NotingExchanges noting(page);
    compute(part, held_of(weights, model::tensor_cut(whole, 4, part.part.rank)), batch, stream,
            noting);
    const int L = static_cast<int>(whole.num_layers);
    std::map<std::string, int> calls;
    for (const auto& [call, count] : noting.calls)
      calls[std::get<1>(call)] += static_cast<int>(count);
    const std::map<std::string, int> expected{
        {"embedding", 1},      {"branch", 2 * L},       {"gradient of what a branch read", 2 * L},
        {"largest logits", 1}, {"sums of the loss", 1}, {"gradient of the head's input", 1}};
    EXPECT_EQ(calls, expected);
  });
}

void expect_listed(const ModelForm& form) {
  const ModelShape& whole = form.shape;
  const ValuesByName weights = weights_of(whole);
  const MicroBatch batch = micro_batch_of(whole);
  run_tensor_ranks(whole, 4, [&](const ModelShape& part, Stream& stream, auto& page) {
    const ValuesByName own = held_of(weights, model::tensor_cut(whole, 4, part.part.rank));
    for (const auto pass : {model::PassKind::kTraining, model::PassKind::kEvaluation}) {
      NotingExchanges noting(page);
      if (pass == model::PassKind::kTraining) {
        compute(part, own, batch, stream, noting);
      } else {
        evaluate(part, own, batch, stream, noting);
      }
      decltype(noting.calls) expected;
      for (const auto& [kind, what, dtype, numel, calls] :
           model::exchanges(part, DeviceKind::kCpu, DType::kF32, pass)) {
        expected[{kind, what, dtype, numel}] += calls;
      }
      EXPECT_EQ(noting.calls, expected) << form.name;
    }
  });
}

TEST(TensorParallel, EveryFormExchangesWhatIsListedBeforehand) {
  std::vector<ModelForm> forms = tensor_rank_forms();
  forms.push_back({"three chunks of logits", cuttable(tiny_model(false), 4)});
  forms.back().shape.sequences = 15;  // 135 tokens, 64 at a time
  forms.back().shape.logits_chunk_elements = 1;
  for (ModelForm& form : forms) {
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      for (const bool sequence_parallel : {false, true}) {
        form.shape.recompute = recompute;
        form.shape.part.sequence_parallel = sequence_parallel;
        expect_listed(form);
      }
    }
  }
}

// PARALLELISM.md A.1: two all-gathers and two reduce-scatters forward, the mirror backward, and two gathers more of
// what the matrices read. 20 tokens of width 23, 5 for each of 4 ranks, of which each sends 3 quarters. Norms have
// no bias here: one sum of 23 numbers each, two in a block and the final one, as 20 and 3 that go as 4.
TEST(SequenceParallel, ABlockIsSixGathersAndFourReduceScatters) {
  ModelShape whole = cuttable(tiny_model(false), 4);
  whole.part.sequence_parallel = true;
  const ModelShape part = model::tensor_part(whole, 4, 0);
  const auto traffic = engine::exchange_traffic(
      part, model::exchanges(part, DeviceKind::kCpu, DType::kF32, model::PassKind::kTraining));
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> sent;
  for (const sharding::Sent& line : traffic.sent()) sent[line.label] = {line.calls, line.bytes};
  const auto rows = [](std::int64_t calls) {
    return std::pair(calls, calls * 20 * 23 * 3 / 4 * 4);
  };
  const std::int64_t L = whole.num_layers;
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> expected{
      {"embedding", rows(1)},
      {"gradient of the embedding", rows(1)},
      {"what a branch reads", rows(2 * L)},
      {"branch", rows(2 * L)},
      {"gradient of a branch", rows(2 * L)},
      {"what a branch read", rows(2 * L)},
      {"gradient of what a branch read", rows(2 * L)},
      {"gradient of a norm", {2 * (2 * L + 1), (2 * L + 1) * 6 * (5 + 1) * 4}},
      {"what the head reads", rows(1)},
      {"gradient of the head's input", rows(1)},
      {"largest logits", {1, 3 * 18 * 4}},
      {"sums of the loss", {1, 6 * 9 * 4}}};
  EXPECT_EQ(sent, expected);
}

// By hand: 18 tokens of width 23 on 4 ranks, 414 elements of which an all-reduce takes 412 and the 2 that are
// left over go as 4. A rank sends 2 * 3 quarters of both.
TEST(TensorParallel, TrafficIsThatOfTheExchanges) {
  const ModelShape part = model::tensor_part(cuttable(tiny_model(false), 1), 4, 0);
  const auto traffic = engine::exchange_traffic(
      part, model::exchanges(part, DeviceKind::kCpu, DType::kF32, model::PassKind::kTraining));
  const auto sent = [&](const std::string& label) {
    for (const sharding::Sent& line : traffic.sent()) {
      if (line.label == label) return std::pair(line.calls, line.bytes);
    }
    return std::pair(std::int64_t{0}, std::int64_t{0});
  };
  EXPECT_EQ(sent("embedding"), std::pair(std::int64_t{2}, std::int64_t{6 * (103 + 1) * 4}));
  EXPECT_EQ(sent("branch"), std::pair(std::int64_t{8}, std::int64_t{4 * 6 * (103 + 1) * 4}));
  // Keys and values, 2 heads of width 6, of 18 tokens: 216 elements for each of two layers.
  EXPECT_EQ(sent("gradients of keys and values"),
            std::pair(std::int64_t{2}, std::int64_t{2 * 6 * 54 * 4}));
  // 18 numbers from each rank to the 3 others.
  EXPECT_EQ(sent("largest logits"), std::pair(std::int64_t{1}, std::int64_t{3 * 18 * 4}));
}

// PARALLELISM.md A.2, by hand: keys and values of 2 heads of width 6 are 24 numbers per position. Of 12 positions 4 ranks
// have 3 each, which go to the 3 others, for each of 2 sequences and 2 layers: in the forward, again in the
// backward, and as gradients in f32.
TEST(ContextParallel, KeysAndValuesAreGatheredTwiceAndTheirGradientsScatteredOnce) {
  ModelShape whole = cuttable(tiny_model(false), 2);
  whole.seq_length = 12;
  whole.dtype = DType::kBF16;
  whole.context.method = model::ContextMethod::kAllGather;
  const ModelShape part = model::context_part(whole, 4, 1);
  const auto traffic = engine::exchange_traffic(
      part, model::exchanges(part, DeviceKind::kCpu, DType::kF32, model::PassKind::kTraining));
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> sent;
  for (const sharding::Sent& line : traffic.sent()) sent[line.label] = {line.calls, line.bytes};
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> expected{
      {"keys and values", {4, 4 * 3 * 3 * 24 * 2}},
      {"keys and values, again", {4, 4 * 3 * 3 * 24 * 2}},
      {"gradients of all keys and values", {4, 4 * 3 * 3 * 24 * 4}}};
  EXPECT_EQ(sent, expected);
}

// B.4 #16.
TEST(TensorParallel, ADegreeThatCantBeIsRefusedWithTheNearestOneThatCan) {
  ModelShape shape = cuttable(tiny_model(false), 2);
  const auto refusal = [&](int degree) -> std::string {
    try {
      model::tensor_part(shape, degree, 0);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal(8), "none");
  EXPECT_EQ(refusal(3),
            "3 tensor ranks can't share a model of 8 query heads, 2 key/value heads, feed-forward "
            "width 40 and 43 tokens: the number must divide heads and width, divide the key/value "
            "heads or be a multiple of them, and leave each rank tokens. 2 would do.");
  EXPECT_TRUE(refusal(16).ends_with("8 would do."));
  shape.vocab_size = 10;  // rows of 2 each for 5 of 8 ranks
  EXPECT_TRUE(refusal(8).ends_with("4 would do."));
  shape.ffn_width = 42;
  EXPECT_TRUE(refusal(4).ends_with("2 would do."));
  shape.kv_heads = 8;
  shape.query_heads = 8;
  EXPECT_EQ(refusal(2), "none");
}

}  // namespace
}  // namespace sherd::testing
