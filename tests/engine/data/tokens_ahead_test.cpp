// Inputs and targets some tokens ahead: within a row and a document, and as many as the batcher counts.

#include "engine/data/tokens_ahead.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

struct Rows {
  Ids inputs, targets, positions;
  std::vector<Ids> ahead;

  explicit Rows(Ids in, Ids to, Ids at = {}, int layers = 2)
      : inputs(std::move(in)), targets(std::move(to)), positions(std::move(at)) {
    ahead.assign(static_cast<std::size_t>(2 * layers), Ids(inputs.size(), 99));
  }
  void fill(std::int64_t seq_length) {
    const auto tensor = [](Ids& ids) { return Tensor{ids.data(), DType::kI32, std::ssize(ids)}; };
    Batch batch{tensor(inputs), tensor(targets)};
    if (!positions.empty()) batch.positions = tensor(positions);
    for (Ids& ids : ahead) batch.ahead.push_back(tensor(ids));
    fill_tokens_ahead(batch, seq_length);
  }
};

TEST(TokensAhead, EndWithTheRow) {
  Rows rows({1, 2, 3, 4, 11, 12, 13, 14}, {2, 3, 4, 5, 12, 13, 14, 15});
  rows.fill(4);
  EXPECT_EQ(rows.ahead[0], Ids({2, 3, 4, 4, 12, 13, 14, 14}));
  EXPECT_EQ(rows.ahead[1], Ids({3, 4, 5, -1, 13, 14, 15, -1}));
  EXPECT_EQ(rows.ahead[2], Ids({3, 4, 3, 4, 13, 14, 13, 14}));
  EXPECT_EQ(rows.ahead[3], Ids({4, 5, -1, -1, 14, 15, -1, -1}));
}

TEST(TokensAhead, EndWithTheDocumentAndLeaveOutWhatIsNoTarget) {
  Rows rows({1, 2, 3, 7, 8, 0}, {2, -1, -1, 8, -1, -1}, {0, 1, 2, 0, 1, 0}, 1);
  rows.fill(6);
  EXPECT_EQ(rows.ahead[0], Ids({2, 3, 3, 8, 8, 0}));
  EXPECT_EQ(rows.ahead[1], Ids({-1, -1, -1, -1, -1, -1}));
  rows.targets = {2, 3, -1, 8, -1, -1};
  rows.fill(6);
  EXPECT_EQ(rows.ahead[1], Ids({3, -1, -1, -1, -1, -1}));
}

TEST(TokensAhead, OfMoreTokensThanARowHasAreNone) {
  Rows rows({1, 2}, {2, 3}, {}, 3);
  rows.fill(2);
  EXPECT_EQ(rows.ahead[5], Ids({-1, -1}));
  EXPECT_EQ(rows.ahead[4], rows.inputs);
}

}  // namespace
}  // namespace sherd::data
