#include "engine/generate/decoder.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/model/transformer.h"
#include "kernels/interleaved.h"
#include "kernels/pointwise.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using engine::Decoder;
using Ids = std::vector<std::int32_t>;
using Rows = std::map<std::int64_t, std::vector<float>>;

engine::TrainingOptions tiny(std::int64_t cached_positions, std::int64_t pass_length) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  options.model.sequences = 1;
  options.model.cached_positions = cached_positions;
  options.model.seq_length = pass_length;
  return options;
}

// Calls `use` with a decoder of an untrained model.
void with_decoder(const engine::TrainingOptions& options,
                  const std::function<void(Decoder&, engine::ShardedModel&)>& use,
                  const RunShape& setup = {}) {
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    const sharding::MirroredBuffer inputs(rank, {"inputs", Category::kData, DType::kI32,
                                                 options.model.tokens(), kAlways, Home::kMirrored});
    rank.guard([&] {
      Decoder decoder(model, inputs);
      use(decoder, model);
    });
  });
}

Rows rows_of(Decoder& decoder, const Ids& tokens, std::int64_t first) {
  Rows rows;
  decoder.logits(tokens, first, [&](std::int64_t position, std::span<const float> logits) {
    rows[position].assign(logits.begin(), logits.end());
  });
  return rows;
}

Rows uncached(const Ids& tokens, std::int64_t first) {
  Rows rows;
  with_decoder(tiny(0, 9), [&](Decoder& decoder, engine::ShardedModel&) {
    rows = rows_of(decoder, tokens, first);
  });
  return rows;
}

const Ids kText = {7, 3, 1, 40, 22, 5, 5, 9, 30};

TEST(Decoder, GivesTheSameLogitsWithACacheAsWithout) {
  const Rows expected = uncached(kText, 0);
  ASSERT_EQ(expected.size(), kText.size());
  for (const std::int64_t pass_length : {1, 2, 4, 9}) {
    with_decoder(tiny(9, pass_length), [&](Decoder& decoder, engine::ShardedModel&) {
      EXPECT_EQ(rows_of(decoder, kText, 0), expected) << "passes of " << pass_length;
    });
  }
}

// Matrices of 32 rows and more, and with some that are left over; a head of its own, and the tokens' matrix.
TEST(Decoder, GivesTheSameLogitsOfInterleavedWeights) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool tied : {false, true}) {
      engine::TrainingOptions options = tiny(9, 4);
      options.model = tiny_model(tied);
      options.model.sequences = 1;
      options.model.cached_positions = 9;
      options.model.seq_length = 4;
      options.model.ffn_width = 38;
      options.model.dtype = dtype;
      options.precision = {dtype, DType::kF32, DType::kF32};
      Rows expected;
      for (const bool turns : {false, true}) {
        with_decoder(options, [&](Decoder& decoder, engine::ShardedModel& model) {
          const bool can = kernels::can_interleave(dtype, options.model.width);
          if (turns) {
            EXPECT_EQ(model.interleave_weights(), can);
          }
          const Rows rows = rows_of(decoder, kText, 0);
          if (!turns) expected = rows;
          EXPECT_EQ(rows, expected) << name_of(dtype) << ", tied " << tied;
        });
      }
    }
  }
}

// What makes keys and values of latents is read head by head, so it isn't interleaved.
engine::TrainingOptions of_latents(DType dtype, std::int64_t cached_positions,
                                   std::int64_t pass_length) {
  engine::TrainingOptions options = tiny(cached_positions, pass_length);
  options.model = shape_named(latent_forms(), "latents");
  options.model.sequences = 1;
  options.model.seq_length = pass_length;
  options.model.cached_positions = cached_positions;
  options.model.width = 24;
  options.model.query_heads = options.model.kv_heads = 6;  // 78 rows, of which 64 would be turned
  options.model.attention_scale = 0.3;
  options.model.latent.absorbed = true;
  options.model.dtype = dtype;
  options.precision = {dtype, DType::kF32, DType::kF32};
  return options;
}

TEST(Decoder, GivesTheSameLogitsWithACacheOfLatentsAndInterleavedWeights) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Rows expected, expanded;
    engine::TrainingOptions training = of_latents(dtype, 0, 9);
    with_decoder(training, [&](Decoder& decoder, engine::ShardedModel&) {
      expected = rows_of(decoder, kText, 0);
    });
    training.model.latent.absorbed = false;
    with_decoder(training, [&](Decoder& decoder, engine::ShardedModel&) {
      expanded = rows_of(decoder, kText, 0);
    });
    for (const auto& [position, logits] : expected) {
      for (std::size_t i = 0; i < logits.size(); ++i) {
        EXPECT_NEAR(logits[i], expanded.at(position)[i], dtype == DType::kF32 ? 1e-5 : 0.06);
      }
    }
    for (const std::int64_t pass_length : {1, 4}) {
      for (const int threads : {1, 3}) {
        with_decoder(
            of_latents(dtype, 9, pass_length),
            [&](Decoder& decoder, engine::ShardedModel& model) {
              if (pass_length == 4) {
                EXPECT_EQ(model.interleave_weights(), dtype == DType::kF32);  // of odd widths
              }
              EXPECT_EQ(rows_of(decoder, kText, 0), expected)
                  << name_of(dtype) << ", passes of " << pass_length << ", threads " << threads;
            },
            {.threads_per_rank = threads});
      }
    }
    // Units that come and go.
    const RunShape sharded{.world_size = 2, .stage = 3};
    with_decoder(
        applied(of_latents(dtype, 9, 4), sharded),
        [&](Decoder& decoder, engine::ShardedModel&) {
          EXPECT_EQ(rows_of(decoder, kText, 0), expected) << name_of(dtype) << ", stage 3";
        },
        sharded);
  }
}

// Adapters' own matrices, some of more than 32 rows, stay as they are; so does a base in four bits.
TEST(Decoder, GivesTheSameLogitsOfAnInterleavedBaseWithAdapters) {
  for (const bool nf4 : {false, true}) {
    engine::TrainingOptions options = tiny(9, 4);
    options.model.ffn_width = 40;
    options.model.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.0};
    options.model.adapter.targets = {"attention.query", "mlp.gate_up", "mlp.down"};
    options.nf4_base = nf4;
    Rows expected;
    for (const bool turns : {false, true}) {
      with_decoder(options, [&](Decoder& decoder, engine::ShardedModel& model) {
        // As if they had been trained: they begin with zeros.
        for (const sharding::UnitState& unit : model.units()) {
          if (!unit.trains()) continue;
          const Tensor trained = unit.resident_parameters();
          for (std::int64_t i = 0; i < trained.numel; ++i) {
            trained.as<float>()[i] += 0.02f * static_cast<float>(i * 7 % 13 - 6);
          }
        }
        if (turns) {
          EXPECT_EQ(model.interleave_weights(), !nf4);
        }
        const Rows rows = rows_of(decoder, kText, 0);
        if (!turns) expected = rows;
        EXPECT_EQ(rows, expected) << (nf4 ? "nf4" : "f32");
      });
    }
  }
}

// At stage 2 ranks tell one another their parts, late; at stage 3 they come and go.
TEST(Decoder, InterleavesWhatHasArrivedAndLeavesWhatComesAndGoes) {
  engine::TrainingOptions options = tiny(9, 4);
  options.model.dtype = DType::kBF16;
  options.model.ffn_width = 38;
  options.precision = {DType::kBF16, DType::kF32, DType::kF32};
  Rows expected;
  with_decoder(options, [&](Decoder& decoder, engine::ShardedModel&) {
    expected = rows_of(decoder, kText, 0);
  });
  const bool can = kernels::can_interleave(DType::kBF16, options.model.width);
  for (const int stage : {2, 3}) {
    const RunShape setup{.world_size = 2, .stage = stage, .slow_stream = "gather"};
    with_decoder(
        applied(options, setup),
        [&](Decoder& decoder, engine::ShardedModel& model) {
          for (int unit = 0; unit < std::ssize(model.units()); ++unit) {
            const auto& state = model.units()[static_cast<std::size_t>(unit)];
            if (stage == 2) {
              kernels::fill_zero(model.rank().compute(), state.resident_parameters());
            }
            model.parameters().publish(unit);
          }
          EXPECT_EQ(model.interleave_weights(), stage == 2 && can);
          EXPECT_EQ(rows_of(decoder, kText, 0), expected);
        },
        setup);
  }
}

// A vocabulary of 41 is cut into 21 and 20 tokens, or 11, 11, 11 and 8.
TEST(Decoder, OnTensorRanksEveryRankHasTheLogitsOfTheWholeVocabulary) {
  engine::TrainingOptions options = tiny(9, 4);
  options.model.ffn_width = 36;
  Rows expected;
  with_decoder(options, [&](Decoder& decoder, engine::ShardedModel&) {
    expected = rows_of(decoder, kText, 0);
  });
  for (const int tensor : {2, 4}) {
    std::vector<Rows> rows(static_cast<std::size_t>(tensor));
    with_decoder(options,
                 [&](Decoder& decoder, engine::ShardedModel& model) {
                   rows[static_cast<std::size_t>(model.rank().rank)] = rows_of(decoder, kText, 0);
                 },
                 {.world_size = tensor, .axes = {{"tensor", tensor}}});
    for (const Rows& own : rows) {
      EXPECT_EQ(own, rows[0]);
      for (const auto& [position, logits] : expected) {
        ASSERT_EQ(own.at(position).size(), logits.size());
        for (std::size_t i = 0; i < logits.size(); ++i) {
          EXPECT_NEAR(own.at(position)[i], logits[i], 1e-5) << position << ", token " << i;
        }
      }
    }
  }
}

// A text of 9 tokens is shared by 2, 3 or 4 ranks, of which the last has the fewest; one of 1 token, too. The
// vocabulary and the layers may be cut as well.
TEST(Decoder, OnContextRanksEveryRankHasTheLogitsOfOne) {
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather}) {
    engine::TrainingOptions options = tiny(0, 12);
    options.model.ffn_width = 36;
    options.model.query_heads = options.model.kv_heads = 4;
    options.model.context.method = method;
    const auto computed = [&](const std::vector<sharding::MeshAxis>& axes, int world) {
      std::vector<Rows> rows(static_cast<std::size_t>(world));
      with_decoder(options,
                   [&](Decoder& decoder, engine::ShardedModel& model) {
                     EXPECT_EQ(decoder.context(), 12);
                     Rows& own = rows[static_cast<std::size_t>(model.rank().rank)];
                     own = rows_of(decoder, kText, 0);
                     own[100] = decoder.last_logits(Ids{7});
                   },
                   {.world_size = world, .axes = axes});
      for (const Rows& own : rows) EXPECT_EQ(own, rows[0]);
      return rows[0];
    };
    const Rows one = computed({}, 1);
    for (const int context : {2, 3, 4}) {
      if (context == 3 && method == model::ContextMethod::kUlysses) continue;
      EXPECT_EQ(computed({{"context", context}}, context), one) << context;
    }
    EXPECT_EQ(computed({{"pipeline", 2}, {"shard", 2}, {"context", 2}}, 8), one);
    EXPECT_EQ(computed({{"context", 2}, {"tensor", 2}}, 4), computed({{"tensor", 2}}, 2));
  }
}

// A ring merges what queries attend to in another order. Texts of 9 tokens end in the middle of the ranks' second parts,
// those of 15 in the last one, the first rank's.
TEST(Decoder, OnARingEveryRankHasTheLogitsOfOneNearly) {
  engine::TrainingOptions options = tiny(0, 16);
  options.model.ffn_width = 36;
  options.model.context.method = model::ContextMethod::kRing;
  Ids long_text = kText;
  long_text.insert(long_text.end(), {8, 0, 12, 33, 2, 19});
  const auto all_rows = [&](Decoder& decoder) {
    Rows rows = rows_of(decoder, long_text, 0);
    for (auto& [position, logits] : rows_of(decoder, kText, 0)) rows[100 + position] = logits;
    rows[200] = decoder.last_logits(Ids{7});
    return rows;
  };
  Rows one;
  with_decoder(options, [&](Decoder& decoder, engine::ShardedModel&) { one = all_rows(decoder); });
  const auto expect_near = [&](const std::vector<sharding::MeshAxis>& axes, int world) {
    std::vector<Rows> rows(static_cast<std::size_t>(world));
    with_decoder(options,
                 [&](Decoder& decoder, engine::ShardedModel& model) {
                   EXPECT_EQ(decoder.context(), 16);
                   rows[static_cast<std::size_t>(model.rank().rank)] = all_rows(decoder);
                 },
                 {.world_size = world, .axes = axes});
    for (const Rows& own : rows) {
      EXPECT_EQ(own, rows[0]);
      for (const auto& [position, logits] : one) {
        ASSERT_EQ(own.at(position).size(), logits.size());
        for (std::size_t i = 0; i < logits.size(); ++i) {
          EXPECT_NEAR(own.at(position)[i], logits[i], 1e-5) << position << ", token " << i;
        }
      }
    }
  };
  for (const int context : {2, 4, 8}) expect_near({{"context", context}}, context);
  expect_near({{"pipeline", 2}, {"shard", 2}, {"context", 2}}, 8);
  expect_near({{"context", 2}, {"tensor", 2}}, 4);
}

TEST(Decoder, GoesOnWhereATextWasLeft) {
  with_decoder(tiny(9, 4), [&](Decoder& decoder, engine::ShardedModel& model) {
    const Ids beginning(kText.begin(), kText.begin() + 6);
    rows_of(decoder, beginning, 5);
    EXPECT_EQ(rows_of(decoder, kText, 7), uncached(kText, 7));
    EXPECT_EQ(model.transformer().shape().seq_length, 3) << "three tokens were new";
  });
}

TEST(Decoder, ComputesAnewWhatAnotherTextHadInItsPlace) {
  with_decoder(tiny(9, 4), [&](Decoder& decoder, engine::ShardedModel&) {
    rows_of(decoder, kText, 8);
    Ids other = kText;
    other[3] = 11;
    EXPECT_EQ(rows_of(decoder, other, 8), uncached(other, 8)) << "though only its end is asked for";
    rows_of(decoder, kText, 8);
    EXPECT_EQ(rows_of(decoder, other, 2), uncached(other, 2));
    EXPECT_EQ(rows_of(decoder, kText, 0), uncached(kText, 0)) << "and the first one again";
  });
}

TEST(Decoder, LeavesTheModelInItsPlannedShape) {
  with_decoder(tiny(9, 4), [&](Decoder&, engine::ShardedModel& model) {
    const sharding::MirroredBuffer inputs(
        model.rank(), {"more", Category::kData, DType::kI32, 4, kAlways, Home::kMirrored});
    {
      Decoder inner(model, inputs);
      rows_of(inner, {1}, 0);
      EXPECT_EQ(model.transformer().shape().seq_length, 1);
    }
    EXPECT_EQ(model.transformer().shape().seq_length, 4);
  });
}

}  // namespace
}  // namespace sherd::testing
