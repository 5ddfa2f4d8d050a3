// What a GPU computes of a model that is cut over ranks: parts of rows, of the vocabulary, of the tokens. Against the
// double oracle of the whole, and the CPU's bits where element-wise kernels have them.
#include <gtest/gtest.h>

#include "kernels/columns.h"
#include "kernels/nf4.h"
#include "kernels/pointwise.h"
#include "kernels/qk_norm.h"
#include "kernels/token.h"
#include "tests/support/devices/place.h"
#include "tests/support/models/documents.h"
#include "tests/support/oracles/oracle_qk_norm.h"

// T tokens, D width, V vocabulary, R ranks, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

class CudaParts : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaParts, test::compute_types(), test::type_name);

// Columns on multiples of 16 bytes, which move as such, and columns next to them.
TEST_P(CudaParts, ColumnsAreStoredClearedAndMovedWithTheCpusBits) {
  for (const auto& [from, to] : {std::pair{Columns{1, 1, 0, 1}, Columns{1, 3, 2, 1}},
                                 {{9, 24, 16, 8}, {9, 40, 8, 8}},
                                 {{9, 24, 16, 8}, {9, 41, 8, 8}},
                                 {{70, 640, 64, 512}, {70, 512, 0, 512}},
                                 {{5, 700, 3, 300}, {5, 310, 7, 300}},
                                 {{4, 6, 6, 0}, {4, 8, 0, 0}}}) {
    const OwnedTensor x = filled(from.rows * from.width, 1), y = filled(to.rows * to.width, 2);
    const OwnedTensor values(DType::kF32, random_values(to.rows * to.count, 3));
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{y, y, y};
          move_columns(place.stream(), from, place.in(x), to, place.out(out[0]));
          store_columns(place.stream(), to, place.in(values), place.out(out[1]));
          clear_columns(place.stream(), to, place.out(out[2]));
          place.finish();
          return out;
        },
        fmt::format("{} columns", to.count));
  }
}

// Positions of a context rank, of which a tensor rank has some; and columns that an adapter reads. Rows that are packs
// of 16 bytes and others, so that packs lie on both sides of a gap.
TEST_P(CudaParts, DropoutOfAPartDrawsAsTheWhole) {
  for (const DropoutPart& part : {DropoutPart{24, 24, 5, 15, 0},
                                  {24, 24, 5, 15, 3},
                                  {37, 37, 3, 4, 1},
                                  {8, 96, 7, 7, 0},
                                  {5, 23, 2, 6, 1},
                                  {24, 24, 6, 18, 0, 3, 9},
                                  {37, 37, 4, 12, 0, 2, 6}}) {
    const std::int64_t rows = 2 * part.rows;
    const OwnedTensor x = filled(rows * part.columns, 1), residual = filled(rows * part.columns, 2);
    const Dropout dropout{0.3f, {0x5eed5eedull, 3, 12}, 1'000'003, part};
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{x, x};
          dropout_backward(place.stream(), place.in(x), dropout, place.out(out[0]), 0.5f);
          residual_add(place.stream(), place.in(residual), place.in(x), dropout, place.out(out[1]));
          place.finish();
          return out;
        },
        fmt::format("{} of {} columns", part.columns, part.all_columns));
  }
}

TEST_P(CudaParts, EmbeddingsOfACutVocabularyHaveTheCpusBitsAndAddUpToTheWhole) {
  constexpr std::int64_t B = 2, S = 65, D = 48, V = 50, kRanks = 3, kRows = 17;
  const OwnedTensor tokens(test::random_tokens(B * S, V, 1));
  const OwnedTensor weight = filled(V * D, 2), positions = filled(S * D, 3),
                    dy = filled(B * S * D, 4);
  const Dropout dropout{0.25f, {0x1234ull, 7, 3}, 0};
  const auto embed = [&](Place& place, std::int64_t first, std::int64_t rows, Outputs& out) {
    const OwnedTensor own(GetParam(),
                          test::values_of(ConstTensor(weight).part(first * D, rows * D)));
    out.emplace_back(GetParam(), B * S * D);
    out.emplace_back(DType::kF32, rows * D);
    out.emplace_back(DType::kF32, S * D);
    const std::size_t at = out.size() - 3;
    const ConstTensor ids = place.in(tokens);
    const VocabularyRows where{first, rows == V ? 0 : V};
    embedding_forward(place.stream(), {.sequences = B,
                                       .positions = S,
                                       .width = D,
                                       .vocab_size = rows,
                                       .tokens = ids,
                                       .token_weight = place.in(own),
                                       .position_weight = place.in(positions),
                                       .dropout = dropout,
                                       .y = place.out(out[at]),
                                       .scale = 1.5f,
                                       .rows = where});
    embedding_backward(place.stream(),
                       {.sequences = B,
                        .positions = S,
                        .width = D,
                        .vocab_size = rows,
                        .position_rows = S,
                        .tokens = ids,
                        .dy = place.in(dy),
                        .dropout = dropout,
                        .d_token_weight = place.out(out[at + 1]),
                        .d_position_weight = place.out(out[at + 2]),
                        .workspace = place.scratch(
                            embedding_backward_workspace_bytes(B * S, rows, place.device())),
                        .scale = 1.5f,
                        .rows = where});
    place.finish();
  };
  const Outputs whole = test::on_gpu([&](Place& place) {
    Outputs out;
    out.reserve(3);
    embed(place, 0, V, out);
    return out;
  });
  Values sum(B * S * D), gradient;
  for (std::int64_t first = 0; first < V; first += kRows) {
    const std::int64_t rows = std::min(kRows, V - first);
    const test::Work work = [&](Place& place) {
      Outputs out;
      out.reserve(3);
      embed(place, first, rows, out);
      return out;
    };
    const Outputs own = test::on_gpu(work);
    EXPECT_TRUE(test::same_bits(own, test::on_cpu(work))) << "rows from " << first;
    const Values y = own[0].values(), dw = own[1].values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
    gradient.insert(gradient.end(), dw.begin(), dw.end());
    EXPECT_TRUE(test::same_bits(own[2], whole[2])) << "positions";
  }
  EXPECT_EQ(sum, whole[0].values());
  EXPECT_EQ(gradient, whole[1].values());
  static_assert(kRanks * kRows > V);
}

// A rank has the positions of whole rows from 100 on: some documents begin before, end after or lie elsewhere. Or it has
// two runs of positions, with documents or without.
TEST_P(CudaParts, PositionsOnSeveralRanksHaveTheCpusGradients) {
  struct Runs {
    std::int64_t first, second = 0;
    bool documents = true;
  };
  constexpr std::int64_t kOwn = 215, D = 24, V = 11;
  const test::OwnedDocuments where = test::documents_in_rows();
  const OwnedTensor tokens(test::random_tokens(2 * kOwn, V, 1)), dy = filled(2 * kOwn * D, 2);
  for (const Runs runs :
       {Runs{0}, Runs{100}, Runs{kOwn}, Runs{50, 320}, Runs{0, 107, false}, Runs{60, 210, false}}) {
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{{DType::kF32, V * D}, {DType::kF32, test::kDocumentPositions * D}};
          Documents documents;
          if (runs.documents) documents = {place.in(where.starts), place.in(where.lengths), {}};
          embedding_backward(place.stream(),
                             {.sequences = 2,
                              .positions = kOwn,
                              .width = D,
                              .vocab_size = V,
                              .position_rows = test::kDocumentPositions,
                              .tokens = place.in(tokens),
                              .dy = place.in(dy),
                              .dropout = {},
                              .d_token_weight = place.out(out[0]),
                              .d_position_weight = place.out(out[1]),
                              .workspace = place.scratch(
                                  embedding_backward_workspace_bytes(2 * kOwn, V, place.device())),
                              .documents = documents,
                              .row_positions = test::kDocumentPositions,
                              .first_position = runs.first,
                              .second_position = runs.second});
          place.finish();
          return out;
        },
        fmt::format("from positions {} and {}", runs.first, runs.second));
  }
}

// Rank r's heads of each of the three parts of rows [H queries, G keys, G values].
Values heads_of(const Values& rows, std::int64_t H, std::int64_t G, std::int64_t K, int ranks,
                int r, bool has_values) {
  const std::int64_t width = (H + (has_values ? 2 : 1) * G) * K;
  Values own;
  for (auto row = rows.begin(); row != rows.end(); row += width) {
    const auto take = [&](std::int64_t first, std::int64_t heads) {
      const auto begin = row + (first + r * heads / ranks) * K;
      own.insert(own.end(), begin, begin + heads / ranks * K);
    };
    take(0, H);
    take(H, G);
    if (has_values) take(H + G, G);
  }
  return own;
}

// Rows of projections of which each rank has a part, and what their norms make of them.
struct CutRows {
  static constexpr std::int64_t T = 13, H = 6, G = 3, K = 24;
  static constexpr std::int64_t kQueryNumel = H * K, kKeyNumel = G * K;
  static constexpr std::int64_t kNumel = T * (kQueryNumel + 2 * kKeyNumel);
  static constexpr int kRanks = 3;
  /// Outputs of one rank.
  enum : std::size_t { kQkv, kRaw, kMean, kRstd, kDqkv, kDQuery, kDKey, kCount };

  DType type;
  NormKind kind;
  Values qkv = test::rounded(type, random_values(kNumel, 1));
  Values dy = test::rounded(type, random_values(kNumel, 2));
  Values query = test::rounded(type, random_values(kQueryNumel, 3, 1.5));
  Values key = test::rounded(type, random_values(kKeyNumel, 4, 1.5));
  bool centred = kind == NormKind::kLayerNorm;

  QkNormShape whole() const { return {kind, QkRows::kProjections, T, H, G, K, 1e-5f, 1.0f}; }
  static Values slice(const Values& weights, std::int64_t heads, int r) {
    const auto begin = weights.begin() + r * heads / kRanks * K;
    return Values(begin, begin + heads / kRanks * K);
  }
  Outputs both_ways(Place& place) const;
};

Outputs CutRows::both_ways(Place& place) const {
  QkNormShape part = whole();
  part.query_heads = H / kRanks, part.kv_heads = G / kRanks;
  part.all_query_heads = H, part.all_kv_heads = G;
  Outputs out;
  for (int r = 0; r < kRanks; ++r) {
    out.emplace_back(type, heads_of(qkv, H, G, K, kRanks, r, true));
    out.emplace_back(type, T * part.raw_width());
    out.emplace_back(DType::kF32, 2 * T);
    out.emplace_back(DType::kF32, 2 * T);
    out.emplace_back(type, heads_of(dy, H, G, K, kRanks, r, true));
    out.emplace_back(DType::kF32, part.query_weights());
    out.emplace_back(DType::kF32, part.key_weights());
  }
  OwnedTensor zeros(DType::kF32, Values(8 * T, 0.0)), own(DType::kF32, 4 * T);
  const Tensor all = place.out(zeros), mine = place.out(own);
  const Tensor sums = all.part(0, 2 * T), squares = all.part(2 * T, 2 * T);
  struct Rank {
    Tensor qkv, raw, mean, rstd, dqkv, d_query, d_key;
    ConstTensor query, key;
  };
  std::vector<Rank> ranks;
  std::vector<OwnedTensor> weights;
  weights.reserve(2 * kRanks);
  for (int r = 0; r < kRanks; ++r) {
    const auto at = [&](std::size_t which) {
      return place.out(out[static_cast<std::size_t>(r) * kCount + which]);
    };
    weights.emplace_back(type, slice(query, H, r));
    weights.emplace_back(type, slice(key, G, r));
    ranks.push_back({at(kQkv), at(kRaw), centred ? at(kMean) : Tensor(), at(kRstd), at(kDqkv),
                     at(kDQuery), at(kDKey), place.in(weights[weights.size() - 2]),
                     place.in(weights.back())});
  }
  // As engine/model/cut/tensor_shares.cpp does, the ranks one after the other.
  const auto add_up = [&](const ConstTensor& row_sums, const Tensor& to) {
    for (const Rank& rank : ranks) {
      qk_norm_sums(place.stream(), {part, rank.qkv, row_sums, mine.part(0, 2 * T)});
      add(place.stream(), mine.part(0, 2 * T), to);
    }
  };
  if (centred) add_up({}, sums);
  add_up(centred ? ConstTensor(sums) : ConstTensor(), squares);
  for (const Rank& rank : ranks) {
    qk_norm_forward(place.stream(),
                    {part, rank.qkv, rank.query, rank.key, rank.raw, rank.mean, rank.rstd,
                     centred ? ConstTensor(sums) : ConstTensor(), squares});
  }
  const Tensor gradients = all.part(4 * T, 4 * T);
  const auto backward = [&](const Rank& rank, const Tensor& row_sums) {
    return QkNormBackward{
        part,       rank.raw,
        rank.mean,  rank.rstd,
        rank.query, rank.key,
        rank.dqkv,  rank.d_query,
        rank.d_key, place.scratch(qk_norm_backward_workspace_bytes(part, place.device())),
        row_sums};
  };
  for (const Rank& rank : ranks) {
    qk_norm_backward_sums(place.stream(), backward(rank, mine));
    add(place.stream(), mine, gradients);
  }
  for (const Rank& rank : ranks) qk_norm_backward(place.stream(), backward(rank, gradients));
  place.finish();
  return out;
}

TEST_P(CudaParts, ProjectionsThatAreCutAreNormalisedAsWholeRows) {
  constexpr std::int64_t H = CutRows::H, G = CutRows::G, K = CutRows::K;
  const DType type = GetParam();
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    const CutRows rows{.type = type, .kind = kind};
    const Outputs gpu = test::on_gpu([&](Place& place) { return rows.both_ways(place); });
    const Values y = oracle::qk_norm_forward(rows.whole(), rows.qkv, rows.query, rows.key);
    const oracle::QkNormGradients expected =
        oracle::qk_norm_backward(rows.whole(), rows.qkv, rows.query, rows.key, rows.dy);
    test::Tolerance tolerance = test::rounded_once(type);
    tolerance.absolute += 4e-6;
    test::Tolerance of_gradients = tolerance;
    of_gradients.floor += 1e-5;
    for (int r = 0; r < CutRows::kRanks; ++r) {
      SCOPED_TRACE(fmt::format("layernorm {} rank {}", rows.centred, r));
      const auto at = [&](std::size_t which) -> const OwnedTensor& {
        return gpu[static_cast<std::size_t>(r) * CutRows::kCount + which];
      };
      EXPECT_TRUE(test::close(at(CutRows::kQkv), heads_of(y, H, G, K, CutRows::kRanks, r, true),
                              tolerance));
      EXPECT_TRUE(test::close(at(CutRows::kDqkv),
                              heads_of(expected.dqkv, H, G, K, CutRows::kRanks, r, true),
                              of_gradients));
      EXPECT_TRUE(test::close(at(CutRows::kDQuery), CutRows::slice(expected.query_weight, H, r),
                              {1e-5, 1e-5, 1e-5}));
      EXPECT_TRUE(test::close(at(CutRows::kDKey), CutRows::slice(expected.key_weight, G, r),
                              {1e-5, 1e-5, 1e-5}));
    }
  }
}

// Columns 128 to 319 of 512, from its second row on.
TEST_P(CudaParts, Nf4OfSomeColumnsOfEveryRowIsTheCpus) {
  constexpr std::int64_t kRowBlocks = 8, kOwnBlocks = 3, kRows = 70, kBlocks = kRows * kRowBlocks;
  const OwnedTensor x(DType::kF32, random_values(kBlocks * kNf4Block, 8, 0.02));
  const std::int64_t before = kOwnBlocks, blocks = (kRows - 1) * kOwnBlocks;
  same_bits_as_cpu(
      [&](Place& place) {
        Outputs out{{DType::kU8, x.numel() / 2},
                    {DType::kF32, kBlocks},
                    {DType::kU8, kBlocks},
                    {DType::kF32, nf4_ranges(x.numel())},
                    {GetParam(), blocks * kNf4Block}};
        const Tensor codes = place.out(out[0]), scales = place.out(out[1]);
        const Tensor scale_codes = place.out(out[2]), ranges = place.out(out[3]);
        nf4_encode(place.stream(), place.in(x), codes, scales);
        nf4_encode_scales(place.stream(), scales, scale_codes, ranges);
        nf4_decode(place.stream(),
                   {.codes = codes.part(0, blocks * kNf4Block / 2),
                    .scale_codes = scale_codes.part(0, blocks),
                    .ranges = ranges,
                    .first_block = 2,
                    .row_blocks = kOwnBlocks,
                    .all_row_blocks = kRowBlocks,
                    .blocks_before = before},
                   place.out(out[4]));
        place.finish();
        return out;
      },
      "columns in NF4");
}

}  // namespace
}  // namespace sherd::kernels
