// Adapters on ranks that have parts of matrices or of sequences: near one rank, bit for bit however the same ranks' state
// is also sharded or pipelined; a quantised base has the codes of whole matrices. Memory as planned in every run.

#include <gtest/gtest.h>

#include "engine/model/cut/tensor_cut.h"
#include "engine/model/parameters.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/equivalence/near_one_rank.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

// 8 query heads on `kv_heads`, rows of 12 positions. One A and B for query, key and value and for gate and up; or one
// for each, a trained head and norms, without clipping.
engine::TrainingOptions adapted(bool fused, std::int64_t kv_heads) {
  model::ModelShape shape = cuttable(tiny_model(false), kv_heads);
  shape.seq_length = 12;
  shape.max_positions = 13;
  shape.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.2};
  if (fused) {
    shape.adapter.targets = {"attention.qkv", "attention.output", "mlp.gate_up", "mlp.down"};
  } else {
    shape.adapter.targets = {"attention.query", "attention.key", "attention.output", "mlp.gate",
                             "mlp.down"};
    shape.adapter.trained_modules = {"head", "norm2"};
  }
  engine::TrainingOptions options = tiny_training(shape);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.9f;
  options.lr_schedule.lr = 0.05;
  return options;
}

engine::TrainingOptions quantised(engine::TrainingOptions options) {
  options.nf4_base = true;
  // Whole blocks of codes for each of two ranks.
  options.model.width = 64;
  options.model.head_size = 16;
  options.model.ffn_width = 128;
  return options;
}

using Gathered = std::map<std::string, std::vector<float>>;

// Every frozen or trained parameter as forwards see it, put together from the ranks' parts.
Gathered gathered(const engine::TrainingOptions& of, const Case& each) {
  const RunShape setup = setup_of(each);
  const engine::TrainingOptions options = applied(of, setup);
  Gathered values = empty_parameters(options.model);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    rank.guard([&] {
      for (int unit = 0; unit < std::ssize(model.units()); ++unit) {
        const sharding::UnitPlan& plan = model.units()[static_cast<std::size_t>(unit)].plan();
        std::vector<ParameterSpec> table = plan.spec.parameters;
        table.insert(table.end(), plan.frozen.begin(), plan.frozen.end());
        table.insert(table.end(), plan.quantised.begin(), plan.quantised.end());
        std::ranges::sort(table, {}, &ParameterSpec::index);
        model.parameters().plan({unit});
        const std::vector<Tensor> views = model.parameters().get(unit);
        rank.compute().synchronize();
        const bool first = rank.mesh.is_first(rank.rank, sharding::zero_axes());
        for (std::size_t p = 0; first && p < views.size(); ++p) {
          std::vector<float>& whole = values.at(table[p].name);
          for (std::int64_t i = 0; i < views[p].numel; ++i) {
            if (!table[p].place_of(i).counts) continue;  // another rank writes the same
            whole[static_cast<std::size_t>(table[p].element_of_whole(i))] = views[p].as<float>()[i];
          }
        }
        model.parameters().release(unit);
      }
      rank.compute().synchronize();
    });
  });
  return values;
}

// Masks of the adapters' dropout follow a token's place and an input's in the whole.
TEST(AdapterMesh, TensorRanksTrainAsOneRankDoesNearly) {
  for (const bool fused : {false, true}) {
    for (const std::int64_t kv_heads : {4, 2}) {
      const engine::TrainingOptions options = adapted(fused, kv_heads);
      const Outcome one = run(options, {.tensor = 1, .micro_steps = 2});
      for (const int tensor : {2, 4}) {
        for (const bool shares_tokens : {false, true}) {
          engine::TrainingOptions cut = options;
          cut.model.part.sequence_parallel = shares_tokens;
          const Case each{.tensor = tensor, .stage = tensor - 1, .micro_steps = 2};
          expect_near(options, run(cut, each), one, 1e-4,
                      fmt::format("{}, fused {}, {} heads, tokens shared {}", name_of(each), fused,
                                  kv_heads, shares_tokens));
        }
      }
    }
  }
}

// Of what leads to latents, which every rank has whole, and of what makes heads from them.
engine::TrainingOptions adapted_latents(const std::string& form) {
  engine::TrainingOptions options = adapted(false, 8);
  const model::AdapterShape adapter = options.model.adapter;
  options.model = cuttable(shape_named(latent_forms(), form), 8);
  options.model.seq_length = 12;
  options.model.max_positions = 13;
  options.model.adapter = adapter;
  options.model.adapter.targets = {"attention.kv_down", "attention.kv_up", "attention.output"};
  const bool has_rank = options.model.latent.query_rank > 0;
  for (const char* target : {"attention.query_down", "attention.query_up"}) {
    if (has_rank) options.model.adapter.targets.emplace_back(target);
  }
  if (!has_rank) options.model.adapter.targets.emplace_back("attention.query");
  options.model.adapter.trained_modules = {"attention.kv_latent_norm", "norm1"};
  return options;
}

TEST(AdapterMesh, AdaptersOfLatentsTrainOnTensorRanksAsOnOneNearly) {
  for (const char* form : {"latents", "latents_and_experts"}) {
    const engine::TrainingOptions options = adapted_latents(form);
    const Outcome one = run(options, {.tensor = 1, .micro_steps = 2});
    for (const int tensor : {2, 4}) {
      for (const bool shares_tokens : {false, true}) {
        engine::TrainingOptions cut = options;
        cut.model.part.sequence_parallel = shares_tokens;
        cut.model.recompute = tensor == 2 ? model::Recompute::kSelective : model::Recompute::kNone;
        const Case each{.tensor = tensor, .stage = tensor - 1, .micro_steps = 2};
        expect_near(options, run(cut, each), one, 1e-4,
                    fmt::format("{}, {}, tokens shared {}", form, name_of(each), shares_tokens));
        const Case more{.tensor = tensor, .shards = 2, .pipeline = 2, .stage = 2, .micro_steps = 2};
        EXPECT_EQ(difference(run(cut, more), same_batch(cut, more, {.tensor = tensor})), "")
            << form << ", " << name_of(more);
      }
    }
  }
}

// Blocks of codes lie along rows: of latents, whole ones on every rank.
TEST(AdapterMesh, AQuantisedBaseOfLatentsHasTheSameCodesOnTensorRanks) {
  engine::TrainingOptions options = adapted_latents("latents");
  options.nf4_base = true;
  options.model.width = 64;
  options.model.ffn_width = 128;
  model::LatentShape latent = options.model.latent;
  latent.kv_rank = latent.query_rank = 64;
  latent.plain = 12;
  latent.value = 16;
  model::set_latent_attention(options.model, latent);
  ASSERT_TRUE(model::cuts_between_blocks(options.model, 2));
  latent.kv_rank = 96;
  model::ModelShape other = options.model;
  model::set_latent_attention(other, latent);
  EXPECT_FALSE(model::cuts_between_blocks(other, 2));
  const Gathered one = gathered(options, {});
  for (const Case& each :
       {Case{.tensor = 2, .stage = 0}, Case{.tensor = 2, .shards = 3, .stage = 3}}) {
    for (const auto& [name, values] : gathered(options, each)) {
      EXPECT_EQ(values, one.at(name)) << name << ", " << name_of(each);
    }
  }
}

// The lowest block has B and A in its MLP alone, so its attention has no backward: no rank may exchange anything for it
// that another rank doesn't.
TEST(AdapterMesh, ABlockWhoseAttentionNeedsNoBackwardTrainsOnThemToo) {
  engine::TrainingOptions options = adapted(false, 4);
  options.model.adapter.targets = {"mlp.down"};
  options.model.adapter.trained_modules = {};
  const Outcome one = run(options, {.tensor = 1});
  for (const Case& each : {Case{.tensor = 4, .stage = 3}, Case{.context = 2, .stage = 2},
                           Case{.context = 2, .tensor = 2, .stage = 1}}) {
    expect_near(options, run(options, each), one, 1e-4, name_of(each));
  }
}

TEST(AdapterMesh, StagesShardsReplicasAndPipelinesKeepTheBitsOfTheSameRanksAlone) {
  for (const bool fused : {false, true}) {
    engine::TrainingOptions options = adapted(fused, 2);
    options.optimizer.type = optim::OptimizerType::kAdamW;
    options.max_norm = 0.05f;
    options.model.context.method = model::ContextMethod::kAllGather;
    options.model.part.sequence_parallel = fused;
    for (const Case& each :
         {Case{.tensor = 2, .shards = 2, .stage = 3}, Case{.tensor = 4, .shards = 2, .stage = 1},
          Case{.tensor = 2, .shards = 2, .replicas = 2, .stage = 2},
          Case{.tensor = 2, .pipeline = 2, .stage = 3, .micro_steps = 3},
          Case{.context = 2, .shards = 2, .stage = 3}, Case{.context = 4, .stage = 2},
          Case{.context = 2, .tensor = 2, .pipeline = 2, .stage = 1, .micro_steps = 2}}) {
      const Case alone{.context = each.context, .tensor = each.tensor};
      EXPECT_EQ(difference(run(options, each), same_batch(options, each, alone)), "")
          << name_of(each) << ", fused " << fused;
    }
  }
}

// Several rows: the parts of different rows aren't neighbours in the batch, for masks.
TEST(AdapterMesh, ContextRanksHaveTheFirstLossOfOneRankAndTrainNearIt) {
  for (const bool fused : {false, true}) {
    for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather}) {
      engine::TrainingOptions options = adapted(fused, 4);
      options.model.context.method = method;
      const Outcome one = run(options, {.context = 1, .micro_steps = 2});
      for (const int context : {2, 4}) {
        const Case each{.context = context, .stage = context - 1, .micro_steps = 2};
        const Outcome cut = run(options, each);
        EXPECT_EQ(cut.losses[0], one.losses[0]) << name_of(each);
        expect_near(options, cut, one, 1e-4, name_of(each));
      }
    }
  }
}

TEST(AdapterMesh, AQuantisedBaseTrainsOnThemAsOnOneRankNearly) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = quantised(adapted(true, 4));
    options.model.dtype = dtype;
    options.precision.parameters = dtype;
    const Outcome one = run(options, {.tensor = 1});
    const double tolerance = dtype == DType::kF32 ? 1e-4 : 0.3;
    for (const Case& each :
         {Case{.tensor = 2, .stage = 0}, Case{.tensor = 2, .shards = 3, .stage = 3}}) {
      if (each.shards > 1) {
        EXPECT_EQ(difference(run(options, each), same_batch(options, each, {.tensor = 2})), "");
      } else {
        expect_near(options, run(options, each), one, tolerance, name_of(each));
      }
    }
    const Case context{.context = 2, .stage = 3};
    EXPECT_EQ(run(options, context).losses[0], one.losses[0]);
  }
}

// The codes are those of whole matrices, each with the ranges of its own place in them; so is what isn't quantised.
TEST(AdapterMesh, WhatIsFrozenHasTheBitsOfOneRankHoweverItIsCut) {
  for (const bool four_bits : {false, true}) {
    for (const bool fused : {false, true}) {
      engine::TrainingOptions options = quantised(adapted(fused, 4));
      options.nf4_base = four_bits;
      options.model.ffn_width = 1024;  // several ranges
      const Gathered one = gathered(options, {});
      for (const Case& each :
           {Case{.tensor = 2, .stage = 0}, Case{.tensor = 2, .shards = 3, .stage = 3},
            Case{.tensor = 2, .shards = 4, .stage = 3},  // a slice begins within a box
            Case{.context = 2, .tensor = 2, .stage = 2}}) {
        for (const auto& [name, values] : gathered(options, each)) {
          EXPECT_EQ(values, one.at(name)) << name << ", " << name_of(each);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
