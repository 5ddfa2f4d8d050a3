// Deep gradient compression against NumPy to the bit (tests/reference/dgc.py), and by algebra.
#include "optim/sparse_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "optim/low_rank_sum.h"
#include "tests/optim/compressed_runs.h"
#include "tests/where.h"

namespace sherd::optim {
namespace {

/// As in tests/reference/dgc.py.
float sparse_formula(int replica, int step, std::uint32_t parameter, std::int64_t element) {
  const std::int64_t i = ((element + 1) * 7919 + step * std::int64_t{104729} +
                          replica * std::int64_t{1299709} + parameter * std::int64_t{15485863}) %
                         2001;
  return static_cast<float>(i * i % 2003 - 1001) / 1024.0f;
}

std::vector<UnitSpec> two_chunks() {
  return {
      {"block.0",
       UnitClass::kBlock,
       {ParameterSpec{"block.0.norm", {13}, {}, 0}, ParameterSpec{"block.0.up", {270, 260}, {}, 1},
        ParameterSpec{"block.0.down", {13, 19}, {}, 2}}}};
}
std::vector<UnitSpec> small_block() {
  return {{"block.0",
           UnitClass::kBlock,
           {ParameterSpec{"block.0.norm", {13}, {}, 0},
            ParameterSpec{"block.0.down", {13, 19}, {}, 2}}}};
}

SparseOptions base() {
  return {.compress_ratio = 0.01, .sample_ratio = 0.05, .momentum = 0.9};
}
Compression with(const SparseOptions& sparse) {
  Compression compression;
  compression.sparse = sparse;
  return compression;
}

/// Each changes one option of the base, two where one alone changes nothing.
std::map<std::string, SparseOptions> cases() {
  std::map<std::string, SparseOptions> all;
  const auto add = [&](const std::string& name, const std::function<void(SparseOptions&)>& change) {
    all[name] = base();
    change(all[name]);
  };
  add("base", [](SparseOptions&) {});
  add("ratio", [](SparseOptions& o) { o.compress_ratio = 0.002; });
  add("sample", [](SparseOptions& o) { o.sample_ratio = 1.0; });
  const auto narrow = [](SparseOptions& o) {
    o.compress_lower_bound = 0.97;
    o.compress_upper_bound = 1.02;
  };
  add("bounds", narrow);
  add("iterations", [&](SparseOptions& o) {
    narrow(o);
    o.sample_ratio = 0.004;
    o.max_adaptation_iters = 1;
  });
  add("warmup", [](SparseOptions& o) { o.warmup_epochs = 2; });
  add("coeff", [](SparseOptions& o) {
    o.warmup_epochs = 2;
    o.warmup_coeff = 0.5;
  });
  add("norm", [](SparseOptions& o) {
    o.clip = LocalClip::kNorm;
    o.clip_threshold = 40.0;
  });
  add("value", [](SparseOptions& o) {
    o.clip = LocalClip::kValue;
    o.clip_threshold = 0.75;
  });
  add("no_correction", [](SparseOptions& o) {
    o.momentum_correction = false;
    o.momentum = 0.0;  // the optimizer has it
  });
  add("no_masking", [](SparseOptions& o) { o.momentum_masking = false; });
  return all;
}

std::string digest_of(const std::vector<float>& values) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const float value : values) {
    const float positive = value + 0.0f;  // not -0
    std::uint8_t bytes[4];
    std::memcpy(bytes, &positive, 4);
    for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
  }
  return fmt::format("{:016x}", hash);
}

std::map<std::string, std::string> digests_of(const CompressedStep& step) {
  std::map<std::string, std::string> digests;
  for (const auto& [parameter, sum] : step.sums) {
    digests[fmt::format("{}.sum", parameter)] = digest_of(sum);
  }
  for (const auto& [name, values] : step.state) {
    if (name != "0.velocity") digests[name] = digest_of(values);
  }
  return digests;
}

TEST(SparseSum, HasTheBitsOfNumpyWithEachOptionChangedAlone) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/dgc.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  const auto all = cases();
  ASSERT_EQ(expected.size(), all.size());
  std::set<std::string> ends;
  for (const auto& [name, options] : all) {
    const auto steps = run({.options = with(options),
                            .units = two_chunks(),
                            .gradient = sparse_formula,
                            .replicas = 3,
                            .shards = 1 + static_cast<int>(ends.size()) % 2,
                            .steps = 6,
                            .steps_per_epoch = 2});
    for (const auto& [number, step] : {std::pair(0, 0), std::pair(1, 5)}) {
      const auto digests = digests_of(steps[static_cast<std::size_t>(step)]);
      const nlohmann::json& wanted = expected[name][static_cast<std::size_t>(number)];
      EXPECT_EQ(digests.size(), wanted.size()) << name;
      for (const auto& [key, digest] : digests) {
        EXPECT_EQ(digest, wanted.value(key, "none")) << name << " " << key << " step " << step;
      }
    }
    ends.insert(digests_of(steps.back()).at("1.sum"));
  }
  EXPECT_EQ(ends.size(), all.size()) << "an option changes nothing";
}

TEST(SparseSum, HasTheSameBitsAtEveryStageAndOnAnyNumberOfShards) {
  for (const LocalClip clip : {LocalClip::kNone, LocalClip::kNorm}) {
    SparseOptions options = base();
    options.compress_ratio = 0.1;
    options.clip = clip;
    expect_equal_at_every_stage({.options = with(options),
                                 .units = straddling_units(),
                                 .gradient = sparse_formula,
                                 .steps = 3});
  }
}

// Exactly: gradients are multiples of 2^-10, and no sum has more than 24 bits.
TEST(SparseSum, WhatWasSentAndTheErrorsAreTheGradients) {
  SparseOptions options = base();
  options.momentum_correction = false;
  options.momentum = 0.0;
  options.compress_ratio = 0.05;
  const CompressedRun how{.options = with(options),
                          .units = small_block(),
                          .gradient = sparse_formula,
                          .replicas = 3,
                          .steps = 50};
  const auto steps = run(how);
  for (std::size_t i = 0; i < 13 * 19; ++i) {
    double sent = 0.0, gradients = 0.0, errors = 0.0;
    for (int step = 0; step < how.steps; ++step) {
      sent += steps[static_cast<std::size_t>(step)].sums.at(2)[i];
      for (int replica = 0; replica < 3; ++replica) {
        gradients += sparse_formula(replica, step, 2, static_cast<std::int64_t>(i));
      }
    }
    for (int replica = 0; replica < 3; ++replica) {
      errors += steps.back().state.at(fmt::format("{}.2.error", replica))[i];
    }
    EXPECT_EQ(sent + errors, gradients) << i;
  }
}

TEST(SparseSum, SendsTheLargestElementsIfAllAreSamples) {
  SparseOptions options = base();
  options.sample_ratio = 1.0;
  options.compress_ratio = 0.05;
  options.momentum = 0.0;
  const auto steps =
      run({.options = with(options),
           .units = small_block(),
           .gradient = [](int, int, std::uint32_t,
                          std::int64_t i) { return static_cast<float>(i % 2 == 0 ? i : -i); },
           .replicas = 1});
  const std::vector<float>& sum = steps[0].sums.at(2);
  for (int i = 0; i < 247; ++i) {  // ceil(0.05 * 247) = 13
    EXPECT_EQ(sum[static_cast<std::size_t>(i)], i < 234 ? 0.0f
                                                : i % 2 ? -static_cast<float>(i)
                                                        : static_cast<float>(i));
  }
}

TEST(SparseSum, ZeroGradientsMoveNothingIn1000Steps) {
  const auto steps = run({.options = with(base()),
                          .units = small_block(),
                          .gradient = [](int, int, std::uint32_t, std::int64_t) { return 0.0f; },
                          .steps = 1000});
  for (const CompressedStep& step : steps) {
    for (const auto& [parameter, sum] : step.sums) {
      for (const float value : sum) ASSERT_EQ(value, 0.0f) << parameter;
    }
  }
  EXPECT_EQ(norm_of(steps.back(), 0, kErrorKind), 0.0);
}

TEST(SparseSum, StepsWithoutTargetsChangeNothing) {
  CompressedRun how{.options = with(base()), .units = small_block(), .steps = 3};
  how.gradient = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return step == 1 ? 0.0f : sparse_formula(replica, step, parameter, i);
  };
  how.has_targets = [](int step) { return step != 1; };
  const auto steps = run(how);
  EXPECT_TRUE(steps[1].state == steps[0].state);
  EXPECT_FALSE(steps[2].state == steps[1].state);
}

TEST(SparseSum, WhatIsntFiniteIsSentFirst) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const LocalClip clip : {LocalClip::kNone, LocalClip::kNorm, LocalClip::kValue}) {
      SparseOptions options = base();
      options.clip = clip;
      const auto steps =
          run({.options = with(options),
               .units = small_block(),
               .gradient = [bad](int replica, int step, std::uint32_t parameter, std::int64_t i) {
                 return replica == 1 && parameter == 2 && i == 240
                            ? bad
                            : sparse_formula(replica, step, parameter, i);
               }});
      EXPECT_FALSE(std::isfinite(steps[0].sums.at(2)[240])) << bad << static_cast<int>(clip);
    }
  }
}

}  // namespace
}  // namespace sherd::optim
