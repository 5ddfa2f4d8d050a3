// Types, loss scaling and optimizers in a recipe: what follows from what, which combinations are
// refused and with which words, and what the layers below receive.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Sets = std::vector<std::string>;

Recipe tiny(const Sets& sets) {
  return resolve(kTinyRecipe, sets).values;
}
std::string error_with(const Sets& sets) {
  return error_of(kTinyRecipe, sets);
}

TEST(RecipePrecision, IsF32WithoutLossScalingByDefault) {
  const Recipe recipe = tiny({});
  const auto& precision = recipe.mixed_precision;
  EXPECT_EQ(precision.param_dtype, FloatType::kF32);
  EXPECT_EQ(precision.gather_dtype, GatherType::kParamDType);
  EXPECT_EQ(precision.reduce_dtype, ReduceType::kF32);
  EXPECT_EQ(precision.grad_accum_dtype, FloatType::kF32);
  EXPECT_EQ(precision.optimizer_state_dtype, FloatType::kF32);
  EXPECT_FALSE(precision.stochastic_rounding);
  EXPECT_EQ(recipe.loss_scaling.mode, LossScaling::Mode::kNone);
  EXPECT_EQ(recipe.activation_checkpointing.mode, Recompute::kNone);
}

TEST(RecipePrecision, LossScalingIsDynamicWhereverGradientsAreF16) {
  const auto mode = [](const Sets& sets) { return tiny(sets).loss_scaling.mode; };
  EXPECT_EQ(mode({"mixed_precision.param_dtype=f16"}), LossScaling::Mode::kDynamic);
  EXPECT_EQ(mode({"mixed_precision.param_dtype=f16", "mixed_precision.reduce_dtype=f16"}),
            LossScaling::Mode::kDynamic);
  EXPECT_EQ(mode({"mixed_precision.grad_accum_dtype=f16",
                  "zero_optimization.grad_sync=every_micro_step"}),
            LossScaling::Mode::kDynamic);
  EXPECT_EQ(mode({"mixed_precision.param_dtype=bf16"}), LossScaling::Mode::kNone);
  EXPECT_EQ(mode({"mixed_precision.param_dtype=f16", "loss_scaling.mode=static"}),
            LossScaling::Mode::kStatic);
  EXPECT_EQ(mode({"loss_scaling.mode=dynamic"}), LossScaling::Mode::kDynamic) << "f32 may have it";
}

TEST(RecipePrecision, GradientsAccumulateInTheTypeTheyAreReducedIn) {
  EXPECT_EQ(tiny({"mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=bf16"})
                .mixed_precision.grad_accum_dtype,
            FloatType::kBF16);
  EXPECT_EQ(tiny({"mixed_precision.param_dtype=bf16"}).mixed_precision.grad_accum_dtype,
            FloatType::kF32);
  const ResolvedRecipe resolved = resolve(kTinyRecipe, {"mixed_precision.param_dtype=f16"});
  EXPECT_EQ(resolved.origin("mixed_precision.grad_accum_dtype").kind, Origin::Kind::kDerived);
  EXPECT_EQ(resolved.origin("loss_scaling.mode").kind, Origin::Kind::kDerived);
}

// Every pair of types for parameters and reduction: nine, of which five are legal.
TEST(RecipePrecision, AReductionIsAtLeastAsWideAsTheParameters) {
  const auto error = [](const char* param, const char* reduce) {
    return error_with({std::string("mixed_precision.param_dtype=") + param,
                       std::string("mixed_precision.reduce_dtype=") + reduce,
                       "loss_scaling.mode=dynamic"});
  };
  for (const char* param : {"f32", "bf16", "f16"}) {
    EXPECT_EQ(error(param, "f32"), "no error") << param;
    EXPECT_EQ(error(param, param), "no error") << param;
  }
  for (const std::string reduce : {"bf16", "f16"}) {
    EXPECT_EQ(error("f32", reduce.c_str()),
              "--set mixed_precision.reduce_dtype=" + reduce +
                  ": mixed_precision.reduce_dtype is narrower than param_dtype f32, which would "
                  "throw away what was computed. Use reduce_dtype: f32, or a 16-bit param_dtype "
                  "too.");
    const std::string param = reduce == "f16" ? "bf16" : "f16";
    EXPECT_EQ(error(param.c_str(), reduce.c_str()),
              "--set mixed_precision.reduce_dtype=" + reduce +
                  ": mixed_precision.reduce_dtype and param_dtype are two different 16-bit types, "
                  "of which neither holds the other. Use reduce_dtype: f32, or param_dtype's own.");
  }
}

TEST(RecipePrecision, F16WithoutLossScalingIsRefusedWhereverItIs) {
  const std::string advice =
      " is f16 and loss_scaling.mode is none: gradients below 6e-8 would vanish. Use "
      "loss_scaling.mode: dynamic, or bf16, which needs none.";
  const std::string where = "--set loss_scaling.mode=none: ";
  EXPECT_EQ(error_with({"mixed_precision.param_dtype=f16", "loss_scaling.mode=none"}),
            where + "mixed_precision.param_dtype" + advice);
  EXPECT_EQ(error_with({"mixed_precision.reduce_dtype=f16", "mixed_precision.param_dtype=f16",
                        "loss_scaling.mode=none"}),
            where + "mixed_precision.param_dtype" + advice);
  const std::string also_narrower =
      error_with({"mixed_precision.reduce_dtype=f16", "loss_scaling.mode=none"});
  EXPECT_TRUE(also_narrower.ends_with("\n" + where + "mixed_precision.reduce_dtype" + advice))
      << also_narrower;
  EXPECT_EQ(error_with({"mixed_precision.grad_accum_dtype=f16", "loss_scaling.mode=none",
                        "zero_optimization.grad_sync=every_micro_step"}),
            where + "mixed_precision.grad_accum_dtype" + advice);
  EXPECT_EQ(error_of(std::string(kTinyRecipe) + "loss_scaling:\n  mode: none\n" +
                     "mixed_precision:\n  param_dtype: f16\n"),
            "recipes/tiny.yaml:13: mixed_precision.param_dtype" + advice);
}

TEST(RecipePrecision, AtTheBoundaryTheAccumulatedGradientIsWhatIsReduced) {
  const Sets sets = {"mixed_precision.param_dtype=bf16", "mixed_precision.grad_accum_dtype=bf16"};
  const std::string error =
      "--set mixed_precision.grad_accum_dtype=bf16: mixed_precision.grad_accum_dtype differs from "
      "reduce_dtype, but with grad_sync: boundary it is the accumulated gradient that is reduced. "
      "Make them equal, or use grad_sync: every_micro_step.";
  for (const int stage : {0, 1, 2, 3}) {
    Sets at_stage = sets;
    at_stage.push_back("zero_optimization.stage=" + std::to_string(stage));
    EXPECT_EQ(error_with(at_stage), stage < 2 ? error : "no error") << "the stage's own grad_sync";
    Sets boundary = at_stage, every = at_stage;
    boundary.push_back("zero_optimization.grad_sync=boundary");
    every.push_back("zero_optimization.grad_sync=every_micro_step");
    EXPECT_EQ(error_with(boundary), error) << "stage " << stage;
    EXPECT_EQ(error_with(every), "no error") << "stage " << stage;
  }
}

TEST(RecipePrecision, MomentsAreF32OrBF16AndOnlyBF16IsRoundedStochastically) {
  EXPECT_EQ(error_with({"mixed_precision.optimizer_state_dtype=f16"}),
            "--set mixed_precision.optimizer_state_dtype=f16: "
            "mixed_precision.optimizer_state_dtype is f16, in which squares of small gradients are "
            "0. Use f32, or bf16, which has the same range.");
  EXPECT_EQ(error_with({"mixed_precision.stochastic_rounding=true"}),
            "--set mixed_precision.stochastic_rounding=true: mixed_precision.stochastic_rounding "
            "is for optimizer_state_dtype: bf16. Set that, or leave this out.");
  EXPECT_EQ(error_with({"mixed_precision.stochastic_rounding=true",
                        "mixed_precision.optimizer_state_dtype=bf16"}),
            "no error");
  EXPECT_EQ(error_with({"mixed_precision.optimizer_state_dtype=fp8"}),
            "--set mixed_precision.optimizer_state_dtype=fp8: "
            "mixed_precision.optimizer_state_dtype is \"fp8\"; expected f32, bf16 or f16.");
}

TEST(RecipePrecision, UnknownTypesListTheChoicesAndKnowTheWordsOfOthers) {
  const auto error = [](const std::string& dtype) {
    const std::string set = "mixed_precision.param_dtype=" + dtype;
    const std::string begin = "--set " + set + ": mixed_precision.param_dtype is \"" + dtype +
                              "\"; expected f32, bf16 or f16";
    const std::string text = error_with({set});
    EXPECT_TRUE(text.starts_with(begin)) << text;
    return text.substr(std::min(begin.size(), text.size()));
  };
  for (const char* word : {"fp16", "float16", "half", "Half", "F16", "FP16"}) {
    EXPECT_EQ(error(word), "; did you mean \"f16\"?") << word;
  }
  for (const char* word : {"bfloat16", "BFloat16", "BF16", "bfp16"}) {
    EXPECT_EQ(error(word), "; did you mean \"bf16\"?") << word;
  }
  for (const char* word : {"fp32", "float32", "float", "single"}) {
    EXPECT_EQ(error(word), "; did you mean \"f32\"?") << word;
  }
  EXPECT_EQ(error("int8"), ".");
  EXPECT_EQ(error("double"), ".");
}

TEST(RecipePrecision, WordsOfOtherEnginesLeadToTheBlocksAndKeys) {
  const auto meant = [](const std::string& lines) {
    const std::string error = error_of(std::string(kTinyRecipe) + lines);
    return error.substr(std::min(error.size(), error.find("did you mean")));
  };
  EXPECT_EQ(meant("fp16:\n  enabled: true\n"), "did you mean \"mixed_precision\"?");
  EXPECT_EQ(meant("bf16:\n  enabled: true\n"), "did you mean \"mixed_precision\"?");
  EXPECT_EQ(meant("training:\n"), "") << "a block of ours";
  EXPECT_EQ(meant("model_:\n  gradient_checkpointing: 1\n"), "did you mean \"model\"?");
  EXPECT_EQ(meant("run:\n  gradient_checkpointing: true\n"),
            "did you mean \"activation_checkpointing.mode\"?");
  EXPECT_EQ(meant("loss_scaling:\n  loss_scale_window: 5\n"),
            "did you mean \"loss_scaling.growth_interval\"?");
  EXPECT_EQ(meant("loss_scaling:\n  mode: off\n"), "did you mean \"none\"?");
  EXPECT_EQ(meant("loss_scaling:\n  mode: true\n"), "did you mean \"dynamic\"?");
  EXPECT_EQ(meant("activation_checkpointing:\n  mode: false\n"), "did you mean \"none\"?");
}

TEST(RecipePrecision, TheLowestScaleIsNotAboveTheFirst) {
  EXPECT_EQ(error_with({"loss_scaling.mode=dynamic", "loss_scaling.min_scale=512",
                        "loss_scaling.initial_scale_power=8"}),
            "--set loss_scaling.min_scale=512: loss_scaling.min_scale is 512, more than the first "
            "scale, 2^8 = 256. Lower it to 256 or less.");
  EXPECT_EQ(error_with({"loss_scaling.mode=dynamic", "loss_scaling.min_scale=256",
                        "loss_scaling.initial_scale_power=8"}),
            "no error");
  EXPECT_EQ(error_with({"loss_scaling.min_scale=512", "loss_scaling.initial_scale_power=8"}),
            "no error")
      << "without loss scaling it doesn't matter";
}

TEST(RecipePrecision, LossScalingsNumbersHaveLimits) {
  const auto expected = [](const std::string& set) {
    const std::string error = error_of_set("loss_scaling." + set);
    return error.substr(std::min(error.size(), error.find("expected")));
  };
  EXPECT_EQ(expected("initial_scale_power=25"), "expected a whole number from 0 to 24.");
  EXPECT_EQ(expected("growth_interval=0"), "expected a whole number from 1 to 1000000000000.");
  EXPECT_EQ(expected("hysteresis=0"), "expected a whole number from 1 to 1000.");
  EXPECT_EQ(expected("min_scale=0"), "expected a number from 1e-06 to 16777216.");
  EXPECT_EQ(expected("on_min_scale=stop"), "expected abort or hold.");
  for (const char* set : {"growth_factor=1", "growth_factor=1025"}) {
    EXPECT_EQ(expected(set), "expected a number above 1 and at most 1024.") << set;
  }
  for (const char* set : {"backoff_factor=0", "backoff_factor=1"}) {
    EXPECT_EQ(expected(set), "expected a number above 0 and below 1.") << set;
  }
}

TEST(RecipeOptimizer, DefaultsFollowTheType) {
  struct Defaults {
    const char* type;
    OptimizerType value;
    double beta2, eps, momentum;
  };
  for (const Defaults& expected : {
           Defaults{"adamw", OptimizerType::kAdamW, 0.95, 1e-8, 0.9},
           Defaults{"adam", OptimizerType::kAdam, 0.95, 1e-8, 0.9},
           Defaults{"sgd", OptimizerType::kSgd, 0.95, 1e-8, 0.9},
           Defaults{"lion", OptimizerType::kLion, 0.99, 1e-8, 0.9},
           Defaults{"lamb", OptimizerType::kLamb, 0.95, 1e-6, 0.9},
           Defaults{"lars", OptimizerType::kLars, 0.95, 1e-8, 0.9},
           Defaults{"muon", OptimizerType::kMuon, 0.95, 1e-8, 0.95},
           Defaults{"dion", OptimizerType::kDion, 0.95, 1e-8, 0.95},
           Defaults{"adafactor", OptimizerType::kAdafactor, 0.95, 0x1p-23, 0.9},
       }) {
    const Recipe recipe = tiny({std::string("optimizer.type=") + expected.type});
    const auto& optimizer = recipe.optimizer;
    EXPECT_EQ(optimizer.type, expected.value) << expected.type;
    EXPECT_EQ(optimizer.betas, (std::array{0.9, expected.beta2})) << expected.type;
    EXPECT_EQ(optimizer.eps, expected.eps) << expected.type;
    EXPECT_EQ(optimizer.momentum, expected.momentum) << expected.type;
    EXPECT_EQ(optimizer.trust_coefficient, 0.001) << expected.type;
    EXPECT_EQ(optimizer.adamw_lr, 3e-4) << expected.type;
    EXPECT_EQ(training_options(recipe).optimizer.type, expected.value) << expected.type;
  }
}

TEST(RecipeOptimizer, WhatIsWrittenStandsAgainstTheTypesDefault) {
  const auto optimizer = tiny({"optimizer.type=muon", "optimizer.momentum=0.5",
                               "optimizer.eps=1e-3", "optimizer.betas=[0.8, 0.9]"})
                             .optimizer;
  EXPECT_EQ(optimizer.momentum, 0.5);
  EXPECT_EQ(optimizer.eps, 1e-3);
  EXPECT_EQ(optimizer.betas, (std::array{0.8, 0.9}));
}

TEST(RecipeOptimizer, UnknownTypesListTheChoices) {
  EXPECT_EQ(error_of_set("optimizer.type=soap"),
            "--set optimizer.type=soap: optimizer.type is \"soap\"; expected adamw, adam, sgd, "
            "lion, lamb, lars, muon, adafactor or dion.");
  EXPECT_EQ(error_of_set("optimizer.type=adam-w"),
            "--set optimizer.type=adam-w: optimizer.type is \"adam-w\"; expected adamw, adam, sgd, "
            "lion, lamb, lars, muon, adafactor or dion; did you mean \"adamw\"?");
}

TEST(RecipeOptimizer, MuonAtRateZeroWouldStopAdamWToo) {
  const Sets sets = {"optimizer.type=muon", "optimizer.lr=0"};
  EXPECT_EQ(error_with(sets),
            "--set optimizer.lr=0: optimizer.lr is 0, and adamw_lr 0.0003 is kept as a "
            "multiple of it. Use a tiny lr, such as 1e-12, or adamw_lr: 0.");
  EXPECT_EQ(error_with({sets[0], sets[1], "optimizer.adamw_lr=0"}), "no error");
  EXPECT_EQ(error_with({"optimizer.lr=0"}), "no error");
}

TEST(EightBitStates, AreForAdamWAdamAndLionInsteadOfAnotherType) {
  const std::string states = "optimizer.eight_bit_states=true";
  for (const char* type : {"adamw", "adam", "lion"}) {
    const Sets sets = {states, std::string("optimizer.type=") + type};
    EXPECT_EQ(error_with(sets), "no error");
    EXPECT_TRUE(training_options(tiny(sets)).optimizer.moment_type.in_8_bits);
  }
  EXPECT_FALSE(training_options(tiny({})).optimizer.moment_type.in_8_bits);
  EXPECT_EQ(error_with({states, "optimizer.type=muon"}),
            "--set optimizer.eight_bit_states=true: optimizer.eight_bit_states is true, but only "
            "adamw, adam and lion keep moments in 8 bits. Use one of them, or leave it out.");
  EXPECT_EQ(error_with({states, "mixed_precision.optimizer_state_dtype=bf16"}),
            "--set optimizer.eight_bit_states=true: optimizer.eight_bit_states is true, and "
            "mixed_precision.optimizer_state_dtype is bf16. Leave one of them out.");
  EXPECT_NE(error_with({states, "mixed_precision.stochastic_rounding=true"})
                .find("is for "
                      "optimizer_state_dtype: bf16"),
            std::string::npos);
}

TEST(TrainingOptions, TakeMuonsCoefficientsOfARecipe) {
  const auto of = [](const Sets& sets) { return training_options(tiny(sets)).optimizer; };
  EXPECT_EQ(of({"optimizer.type=muon"}).muon_coefficients, optim::MuonCoefficients::kJordan);
  EXPECT_EQ(
      of({"optimizer.type=muon", "optimizer.muon_coefficients=polar_express"}).muon_coefficients,
      optim::MuonCoefficients::kPolarExpress);
}

TEST(TrainingOptions, TakeThePrecisionOfARecipe) {
  const TrainingOptions options = training_options(
      tiny({"mixed_precision.param_dtype=bf16", "mixed_precision.grad_accum_dtype=bf16",
            "zero_optimization.stage=2", "mixed_precision.optimizer_state_dtype=bf16",
            "mixed_precision.stochastic_rounding=true", "run.seed=9",
            "activation_checkpointing.mode=selective"}));
  EXPECT_EQ(options.precision.parameters, DType::kBF16);
  EXPECT_EQ(options.precision.reduce, DType::kF32);
  EXPECT_EQ(options.precision.accumulate, DType::kBF16);
  EXPECT_EQ(options.model.dtype, DType::kBF16);
  EXPECT_EQ(options.model.recompute, Recompute::kSelective);
  EXPECT_EQ(options.optimizer.moment_type.dtype, DType::kBF16);
  EXPECT_TRUE(options.optimizer.moment_type.stochastic);
  EXPECT_EQ(options.optimizer.moment_type.seed, 9u);
  EXPECT_EQ(options.loss_scaling.mode, LossScaling::Mode::kNone);
  EXPECT_EQ(training_options(tiny({"activation_checkpointing.mode=full"})).model.recompute,
            Recompute::kFull);
  EXPECT_EQ(training_options(tiny({"mixed_precision.param_dtype=f16"})).model.dtype, DType::kF16);
}

TEST(TrainingOptions, TakeTheLossScalingOfARecipe) {
  const LossScaling scaling =
      training_options(tiny({"loss_scaling.mode=dynamic", "loss_scaling.initial_scale_power=10",
                             "loss_scaling.growth_factor=4", "loss_scaling.backoff_factor=0.25",
                             "loss_scaling.growth_interval=7", "loss_scaling.hysteresis=3",
                             "loss_scaling.min_scale=0.5", "loss_scaling.on_min_scale=hold"}))
          .loss_scaling;
  EXPECT_EQ(scaling.mode, LossScaling::Mode::kDynamic);
  EXPECT_EQ(scaling.initial_scale_power, 10);
  EXPECT_EQ(scaling.growth_factor, 4.0);
  EXPECT_EQ(scaling.backoff_factor, 0.25);
  EXPECT_EQ(scaling.growth_interval, 7);
  EXPECT_EQ(scaling.hysteresis, 3);
  EXPECT_EQ(scaling.min_scale, 0.5);
  EXPECT_EQ(scaling.on_min_scale, LossScaling::OnMinScale::kHold);
  // FACTS §7: what DeepSpeed, PyTorch and Megatron start from.
  const LossScaling defaults = training_options(tiny({})).loss_scaling;
  EXPECT_EQ(defaults.initial_scale_power, 16);
  EXPECT_EQ(defaults.growth_factor, 2.0);
  EXPECT_EQ(defaults.backoff_factor, 0.5);
  EXPECT_EQ(defaults.growth_interval, 1000);
  EXPECT_EQ(defaults.hysteresis, 2);
  EXPECT_EQ(defaults.min_scale, 1.0);
  EXPECT_EQ(defaults.on_min_scale, LossScaling::OnMinScale::kAbort);
}

TEST(TrainingOptions, TakeTheOptimizerOfARecipe) {
  const optim::OptimizerOptions options =
      training_options(tiny({"optimizer.type=muon", "optimizer.lr=0.02", "optimizer.adamw_lr=0.005",
                             "optimizer.betas=[0.75, 0.5]", "optimizer.eps=0.25",
                             "optimizer.momentum=0.875", "optimizer.trust_coefficient=0.125",
                             "optimizer.weight_decay=0.0625", "optimizer.no_decay=[\"head.*\"]"}))
          .optimizer;
  EXPECT_EQ(options.type, OptimizerType::kMuon);
  EXPECT_EQ(options.adamw_lr_ratio, 0.25f);
  EXPECT_EQ(options.beta1, 0.75f);
  EXPECT_EQ(options.beta2, 0.5f);
  EXPECT_EQ(options.eps, 0.25f);
  EXPECT_EQ(options.momentum, 0.875f);
  EXPECT_EQ(options.trust_coefficient, 0.125f);
  EXPECT_EQ(options.decay.rate, 0.0625f);
  EXPECT_EQ(options.decay.no_decay, std::vector<std::string>{"head.*"});
  EXPECT_EQ(options.muon_dtype, DType::kF32);
  EXPECT_EQ(training_options(tiny({"optimizer.type=muon", "optimizer.muon_dtype=bf16"}))
                .optimizer.muon_dtype,
            DType::kBF16);
}

}  // namespace
}  // namespace sherd::engine
