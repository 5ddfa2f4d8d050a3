// Attention on a GPU where ranks have some of a model's heads, or some of the queries: against attention of all of them
// there. The shapes are such that our own kernels compute the whole, too.
#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/columns.h"
#include "kernels/device_common/attention.h"
#include "tests/support/devices/place.h"
#include "tests/support/models/documents.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::Values;

class CudaAttentionParts : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionParts, test::compute_types(), test::type_name);

constexpr Dropout kDropout{0.3f, {0xfeedfaceull, 3, 5}, 7 * 4 * 150 * 150};

struct Inputs {
  OwnedTensor qkv, dout;
  OwnedTensor keys_values;  // of all positions; without elements: they are in qkv
};

enum : std::size_t { kOut, kLse, kDqkv, kDkv };

// `wide`: gradients of keys and values in f32.
Outputs attend(DType type, const AttentionShape& shape, const Inputs& inputs,
               const Dropout& dropout, bool wide, const test::OwnedDocuments* documents = nullptr) {
  return test::on_gpu([&](Place& place) {
    const std::int64_t kv = shape.tokens() * 2 * shape.kv_heads * shape.head_width;
    Outputs out{{type, inputs.dout.numel()},
                {DType::kF32, shape.query_tokens() * shape.query_heads},
                {type, Values(static_cast<std::size_t>(inputs.qkv.numel()), 0.0)},
                {DType::kF32, kv}};
    const ConstTensor qkv = place.in(inputs.qkv);
    const ConstTensor apart =
        inputs.keys_values.numel() > 0 ? place.in(inputs.keys_values) : ConstTensor();
    const Tensor result = place.out(out[kOut]), lse = place.out(out[kLse]);
    const std::int64_t bytes = attention_workspace_bytes(shape, type, place.device());
    Documents where;
    if (documents) where = {place.in(documents->starts), place.in(documents->lengths), {}};
    attention_forward(place.stream(), {.shape = shape,
                                       .qkv = qkv,
                                       .dropout = dropout,
                                       .out = result,
                                       .lse = lse,
                                       .workspace = place.scratch(bytes),
                                       .documents = where,
                                       .keys_values = apart});
    attention_backward(place.stream(), {.shape = shape,
                                        .qkv = qkv,
                                        .out = result,
                                        .lse = lse,
                                        .dout = place.in(inputs.dout),
                                        .dropout = dropout,
                                        .dqkv = place.out(out[kDqkv]),
                                        .workspace = place.scratch(bytes),
                                        .documents = where,
                                        .dkv = wide ? place.out(out[kDkv]) : Tensor(),
                                        .keys_values = apart});
    place.finish();
    return out;
  });
}

Inputs inputs_of(DType type, const AttentionShape& shape) {
  return {{type, test::random_values(shape.tokens() * shape.packed_width(), 1)},
          {type, test::random_values(shape.tokens() * shape.query_heads * shape.head_width, 2)},
          {type, 0}};
}

// Columns [first, first + count) of rows `width` wide, of those of each sequence that [begin, end) are.
struct Rows {
  std::int64_t sequences, width, begin, end;
};
Values taken(const OwnedTensor& from, const Rows& rows, std::int64_t first, std::int64_t count) {
  const Values all = from.values();
  const std::int64_t of_a_sequence = std::ssize(all) / (rows.sequences * rows.width);
  Values own;
  for (std::int64_t b = 0; b < rows.sequences; ++b) {
    for (std::int64_t s = rows.begin; s < rows.end; ++s) {
      const auto row = all.begin() + (b * of_a_sequence + s) * rows.width + first;
      own.insert(own.end(), row, row + count);
    }
  }
  return own;
}

AttentionShape shape_of(DType type) {
  AttentionShape shape{
      .sequences = 2, .positions = 150, .query_heads = 4, .kv_heads = 2, .head_width = 8};
  if (type != DType::kF32) shape.window = 100;  // what cuDNN isn't asked for
  return shape;
}

TEST_P(CudaAttentionParts, SomeHeadsHaveTheBitsAndTheMaskThatTheyHaveAmongAll) {
  const DType type = GetParam();
  const AttentionShape whole = shape_of(type);
  const std::int64_t K = whole.head_width;
  const Inputs all = inputs_of(type, whole);
  const Outputs expected = attend(type, whole, all, kDropout, false);
  for (int rank = 0; rank < 2; ++rank) {
    AttentionShape part = whole;
    part.query_heads = 2, part.kv_heads = 1;
    part.first_query_head = 2 * rank, part.all_query_heads = 4;
    const auto own_qkv = [&](const OwnedTensor& from) {
      const Rows rows{1, whole.packed_width(), 0, whole.tokens()};
      OwnedTensor own(type, part.tokens() * part.packed_width());
      const Values q = taken(from, rows, 2 * rank * K, 2 * K),
                   k = taken(from, rows, (4 + rank) * K, K),
                   v = taken(from, rows, (6 + rank) * K, K);
      Values packed;
      for (std::int64_t t = 0; t < whole.tokens(); ++t) {
        packed.insert(packed.end(), q.begin() + t * 2 * K, q.begin() + (t + 1) * 2 * K);
        packed.insert(packed.end(), k.begin() + t * K, k.begin() + (t + 1) * K);
        packed.insert(packed.end(), v.begin() + t * K, v.begin() + (t + 1) * K);
      }
      return OwnedTensor(type, packed);
    };
    const Rows out_rows{1, 4 * K, 0, whole.tokens()};
    const auto own_out = [&](const OwnedTensor& from) {
      return OwnedTensor(type, taken(from, out_rows, 2 * rank * K, 2 * K));
    };
    const Inputs inputs{own_qkv(all.qkv), own_out(all.dout), {type, 0}};
    const Outputs out = attend(type, part, inputs, kDropout, false);
    EXPECT_TRUE(test::same_bits(out[kOut], own_out(expected[kOut]))) << "rank " << rank;
    EXPECT_TRUE(test::same_bits(out[kDqkv], own_qkv(expected[kDqkv]))) << "rank " << rank;
  }
}

TEST_P(CudaAttentionParts, GradientsOfSharedKeysAreTheSameBeforeTheyAreRounded) {
  const DType type = GetParam();
  AttentionShape shape = shape_of(type);
  const Inputs inputs = inputs_of(type, shape);
  const Outputs rounded = attend(type, shape, inputs, kDropout, false);
  shape.shares_keys = true;
  const Outputs wide = attend(type, shape, inputs, kDropout, true);
  const std::int64_t queries = shape.query_heads * shape.head_width;
  const std::int64_t kv = shape.packed_width() - queries;
  const Rows rows{1, shape.packed_width(), 0, shape.tokens()};
  EXPECT_TRUE(test::same_bits(wide[kOut], rounded[kOut]));
  EXPECT_EQ(taken(wide[kDqkv], rows, 0, queries), taken(rounded[kDqkv], rows, 0, queries));
  EXPECT_EQ(test::rounded(type, wide[kDkv].values()), taken(rounded[kDqkv], rows, queries, kv));
  // Of keys and values nothing is written to dqkv.
  EXPECT_EQ(taken(wide[kDqkv], rows, queries, kv),
            Values(static_cast<std::size_t>(shape.tokens() * kv), 0.0));
}

void expect_parts_make_the_whole(DType type, AttentionShape whole, const Dropout& dropout,
                                 const test::OwnedDocuments* documents = nullptr) {
  const std::int64_t B = whole.sequences, S = whole.positions, K = whole.head_width;
  const std::int64_t width = whole.query_heads * K, kv_width = 2 * whole.kv_heads * K;
  const Inputs all = inputs_of(type, whole);
  whole.shares_keys = true;
  const Outputs expected = attend(type, whole, all, dropout, true, documents);
  const Rows qkv_rows{B, whole.packed_width(), 0, S};
  const Values keys_values = taken(all.qkv, qkv_rows, width, kv_width);
  Values sum(static_cast<std::size_t>(expected[kDkv].numel()));
  std::int64_t first = 0;
  for (const std::int64_t end : {S / 4 + 3, S / 4 + 4, S * 3 / 4, S}) {
    SCOPED_TRACE(fmt::format("queries {} to {}", first, end));
    AttentionShape part = whole;
    part.first_query = first;
    part.queries = end - first;
    const auto own = [&](const OwnedTensor& from, std::int64_t of_a_row) {
      return OwnedTensor(from.tensor().dtype, taken(from, {B, of_a_row, first, end}, 0, of_a_row));
    };
    const Inputs inputs{
        own(all.qkv, whole.packed_width()), own(all.dout, width), {type, keys_values}};
    const Outputs out = attend(type, part, inputs, dropout, true, documents);
    EXPECT_TRUE(test::same_bits(out[kOut], own(expected[kOut], width)));
    const OwnedTensor lse(DType::kF32,
                          taken(expected[kLse], {B * whole.query_heads, 1, first, end}, 0, 1));
    EXPECT_TRUE(test::same_bits(out[kLse], lse));
    const Rows parts_rows{B, whole.packed_width(), 0, part.queries};
    EXPECT_EQ(taken(out[kDqkv], parts_rows, 0, width),
              taken(expected[kDqkv], {B, whole.packed_width(), first, end}, 0, width));
    const Values gradients = out[kDkv].values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients[i];
    first = end;
  }
  EXPECT_TRUE(test::close(expected[kDkv], sum, {1e-5, 1e-5}));
}

TEST_P(CudaAttentionParts, SomeQueriesHaveTheirBitsAndGradientsOfKeysAddUp) {
  AttentionShape plain = shape_of(GetParam());
  plain.window = 0;
  expect_parts_make_the_whole(GetParam(), plain, {});
  expect_parts_make_the_whole(GetParam(), plain, kDropout);
  plain.window = 20;  // the last part's queries see none of the first tiles' keys
  plain.softcap = 3.0f;
  expect_parts_make_the_whole(GetParam(), plain, {});
}

// Parts with the begin, the middle or the end of a document, with none of its queries or with padding alone.
TEST_P(CudaAttentionParts, SomeQueriesHaveThemInsideOfDocuments) {
  const test::OwnedDocuments documents = test::documents_in_rows();
  AttentionShape shape = shape_of(GetParam());
  shape.positions = test::kDocumentPositions;
  shape.query_heads = 2;
  shape.kv_heads = 1;
  shape.window = 0;
  expect_parts_make_the_whole(GetParam(), shape, kDropout, &documents);
}

TEST(CudaAttentionForm, WhatRanksShareIsOursAndSomeHeadsAreCudnns) {
  using device_common::attention_form;
  using device_common::AttentionForm;
  AttentionShape heads{.sequences = 2,
                       .positions = 1024,
                       .query_heads = 4,
                       .kv_heads = 4,
                       .head_width = 64,
                       .first_query_head = 4,
                       .all_query_heads = 8};
  EXPECT_EQ(attention_form(heads, DType::kBF16), AttentionForm::kCudnn);
  heads.shares_keys = true;
  EXPECT_EQ(attention_form(heads, DType::kBF16), AttentionForm::kOwn);
  heads.shares_keys = false;
  heads.queries = 512;
  EXPECT_EQ(attention_form(heads, DType::kBF16), AttentionForm::kOwn);
  const ComputeDevice gpu{DeviceKind::kCuda, 1, true};
  EXPECT_EQ(attention_workspace_bytes(heads, DType::kBF16, gpu), 2 * 512 * 4 * 4);
}

}  // namespace
}  // namespace sherd::kernels
