/// Rows of logits with a teacher, for tests that compare devices.
#pragma once

#include <gtest/gtest.h>

#include "kernels/token.h"
#include "tests/support/devices/place.h"

namespace sherd::kernels {

struct TaughtCase {
  std::int64_t tokens, vocab_size, top;
  float weight, temperature;
  LogitsForm form{};

  /// The second token has no target; the third one's is among its teacher's.
  std::vector<std::int32_t> targets() const {
    std::vector<std::int32_t> ids = test::random_tokens(tokens, vocab_size, 1);
    ids[1] = kNoTarget;
    ids[2] = this->ids()[static_cast<std::size_t>(2 * top)];
    return ids;
  }
  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens * top; ++i) {
      ids.push_back(static_cast<std::int32_t>((i / top * 31 + i % top * 3) % vocab_size));
    }
    return ids;
  }
  test::Values probabilities() const {
    test::Values values;
    for (std::int64_t i = 0; i < tokens * top; ++i) {
      values.push_back(2.0 * static_cast<double>(top - i % top) /
                       static_cast<double>(top * (top + 1)));
    }
    return values;
  }
};

/// What a teacher says of them, in host memory.
struct TaughtTensors {
  explicit TaughtTensors(const TaughtCase& c)
      : form{c.top, c.weight, c.temperature},
        ids(c.ids()),
        probabilities(DType::kF32, c.probabilities()) {}
  /// Without memory for divergences.
  Teacher on(test::Place& place) const {
    return {form, place.in(ids), place.in(probabilities), {}};
  }

  TeacherForm form;
  test::OwnedTensor ids, probabilities;
};

inline const TaughtCase kTaughtCases[] = {
    {3, 7, 2, 0.5f, 1.0f}, {5, 512, 12, 1.0f, 2.0f}, {4, 1003, 300, 0.25f, 0.5f, {0.5f, 3.0f}}};

/// Outputs: gradients, losses and divergences.
inline void expect_taught(DType type, const test::Outputs& gpu, const test::Outputs& cpu) {
  EXPECT_TRUE(test::close(gpu[1], cpu[1].values(), {1e-5, 1e-5, 1e-5}));
  EXPECT_TRUE(test::close(gpu[2], cpu[2].values(), {2e-5, 2e-5, 2e-5}));
  EXPECT_EQ(gpu[2].values()[1], 0.0) << "a row without a target";
  test::Tolerance tolerance = test::rounded_once(type).times(2);
  tolerance.absolute += 1e-6;
  EXPECT_TRUE(test::close(gpu[0], cpu[0].values(), tolerance));
}

}  // namespace sherd::kernels
