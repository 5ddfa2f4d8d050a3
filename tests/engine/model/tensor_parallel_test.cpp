// Models cut over tensor ranks against the same models on one device: losses and the gradient of every
// parameter, on every rank. What may differ is rounding, measured on the whole model (cut_case.h).
//
// Numbers like "B.4 #11" name reports of bugs in other engines that a test would have seen:
// 1 copies of a weight drift apart; 2 a vocabulary that ranks can't share evenly; 7 dropout drawn from
// another stream; 9 a loss off by log R, or groups mixed up by recompute; 10, 11, 16 key/value heads that
// several ranks hold; 24 nothing exchanged, and no test noticed; 28 copies counted several times in a norm;
// 35 gradients of targets on other ranks; 36 a loss that depends on the number of ranks.

#include "tests/engine/model/cut_case.h"

namespace sherd::testing {
namespace {

using model::ModelShape;

// Eight query heads and a feed-forward width that 8 divides; a model width and a vocabulary that nothing
// does, so that sums over ranks have elements left over and the last rank has fewer tokens.
struct Expected {
  explicit Expected(const ModelShape& shape)
      : shape(shape),
        weights(weights_of(shape)),
        batch(micro_batch_of(shape)),
        whole(compute_whole(shape, weights, batch)),
        noise(noise_of(shape, weights, batch, whole)) {}

  /// How far a rank is from the whole model, in units of what rounding moves it, at worst.
  std::pair<double, std::string> distance(const Computed& rank, const UnitCuts& cuts) const {
    std::pair<double, std::string> worst{farthest(rank.losses, whole.losses) / noise.losses,
                                         "losses"};
    for (const auto& [name, gradient] : held_of(whole.gradients, cuts)) {
      const double off = farthest(rank.gradients.at(name), gradient) / noise.gradients.at(name);
      if (!(off <= worst.first)) worst = {off, name};
    }
    return worst;
  }
  void expect_close(const std::vector<Computed>& ranks, const std::string& label) const {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto [off, where] = distance(
          ranks[r], model::tensor_cut(shape, static_cast<int>(ranks.size()), static_cast<int>(r)));
      EXPECT_LE(off, Noise::kRoundings)
          << label << ", rank " << r << " of " << ranks.size() << ": " << where;
    }
  }

  ModelShape shape;
  ValuesByName weights;
  MicroBatch batch;
  Computed whole;
  Noise noise;
};

TEST(TensorParallel, EveryFormHasTheWholeModelsLossesAndGradientsOnAnyNumberOfRanksUnderDropout) {
  for (const ModelForm& form : tensor_rank_forms()) {
    const Expected expected(form.shape);
    for (const int degree : {2, 4, 8}) {
      expected.expect_close(compute_cut(form.shape, degree, expected.weights, expected.batch),
                            form.name);
    }
  }
}

// A test that allows everything shows nothing.
TEST(TensorParallel, WhatIsAllowedIsAtMostFortyMillionthsOfAGradient) {
  for (const ModelForm& form : tensor_rank_forms()) {
    const Expected expected(form.shape);
    EXPECT_LT(expected.noise.losses * Noise::kRoundings, 1e-5) << form.name;
    // Latents lengthen the way to a norm.
    const double most = form.shape.latent.active() ? 4e-5 : 2e-5;
    for (const auto& [name, values] : expected.whole.gradients) {
      const double size = farthest(values, std::vector<float>(values.size()));
      EXPECT_GT(size, 1e-4) << form.name << ": " << name;
      EXPECT_LT(expected.noise.gradients.at(name) * Noise::kRoundings, most * size)
          << form.name << ": " << name;
    }
  }
}

TEST(TensorParallel, OneRankHasTheBitsAndTheBuffersOfAWholeModel) {
  for (const ModelForm& form : tensor_rank_forms()) {
    const ValuesByName weights = weights_of(form.shape);
    const MicroBatch batch = micro_batch_of(form.shape);
    const Computed whole = compute_whole(form.shape, weights, batch);
    const Computed one = compute_cut(form.shape, 1, weights, batch)[0];
    EXPECT_EQ(one.losses, whole.losses) << form.name;
    EXPECT_EQ(one.gradients, whole.gradients) << form.name;
    EXPECT_EQ(one.buffers, whole.buffers) << form.name;
    for (const BufferSpec& buffer : whole.buffers) {
      for (const char* of_cuts : {"loss.maxima", "loss.sums", "d_keys_and_values", "qk_row_sums"}) {
        EXPECT_NE(buffer.name, of_cuts) << form.name;
      }
    }
  }
}

// B.4 #1 and #10: nothing but equal gradients keeps copies of a weight equal.
TEST(TensorParallel, CopiesOfAWeightHaveTheSameBitsOfItsGradient) {
  for (const ModelForm& form : tensor_rank_forms()) {
    const int degree = 4;
    const auto ranks =
        compute_cut(form.shape, degree, weights_of(form.shape), micro_batch_of(form.shape));
    std::map<std::pair<std::string, std::int64_t>, float> first;  // (parameter, element)
    for (int r = 0; r < degree; ++r) {
      for (const auto& unit : model::tensor_cut(form.shape, degree, r)) {
        for (const ParameterCut& cut : unit) {
          const auto& gradient = ranks[static_cast<std::size_t>(r)].gradients.at(cut.name);
          std::size_t different = 0;
          for_each_run(cut.boxes(), cut.columns(), 0, std::ssize(gradient), [&](const BoxRun& run) {
            for (std::int64_t i = 0; i < run.count; ++i) {
              const float value = gradient[static_cast<std::size_t>(run.in_part + i)];
              different +=
                  first.emplace(std::pair(cut.name, run.in_tensor + i), value).first->second !=
                  value;
            }
          });
          EXPECT_EQ(different, 0u) << form.name << ", rank " << r << ": " << cut.name;
        }
      }
    }
  }
}

TEST(TensorParallel, AfterThreeStepsCopiesHaveTheSameBitsAndAllWeightsAreTheWholeModels) {
  constexpr int kRanks = 4;
  for (const char* name : {"gpt2", "fewer_kv_heads_than_ranks", "post"}) {
    const ModelShape whole = cuttable_form(name);
    const MicroBatch batch = micro_batch_of(whole);
    const auto descend = [](ValuesByName& weights, const ValuesByName& gradients) {
      for (auto& [parameter, values] : weights) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] -= gradients.at(parameter)[i];
      }
    };
    ValuesByName expected = weights_of(whole);
    std::vector<ValuesByName> ranks(kRanks);
    run_tensor_ranks(whole, kRanks, [&](const ModelShape& part, Stream& stream, auto& page) {
      const int r = part.part.rank;
      ValuesByName own = held_of(weights_of(whole), model::tensor_cut(whole, kRanks, r));
      for (int step = 0; step < 3; ++step) {
        descend(own, compute(part, own, batch, stream, page).gradients);
      }
      ranks[static_cast<std::size_t>(r)] = own;
    });
    for (int step = 0; step < 3; ++step) {
      descend(expected, compute_whole(whole, expected, batch).gradients);
    }
    ValuesByName together = expected;
    for (int r = 0; r < kRanks; ++r) {
      put_counted(ranks[static_cast<std::size_t>(r)], model::tensor_cut(whole, kRanks, r),
                  together);
    }
    for (const auto& [parameter, values] : expected) {
      EXPECT_LT(farthest(together.at(parameter), values), 1e-5) << name << ": " << parameter;
    }
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(held_of(together, model::tensor_cut(whole, kRanks, r)),
                ranks[static_cast<std::size_t>(r)])
          << name << ", rank " << r;
    }
  }
}

TEST(TensorParallel, AllRanksHaveTheSameBitsOfEveryTokensLoss) {
  const ModelShape shape = cuttable(tiny_model(false), 2);
  const auto ranks = compute_cut(shape, 8, weights_of(shape), micro_batch_of(shape));
  for (const Computed& rank : ranks) EXPECT_EQ(rank.losses, ranks[0].losses);
}

TEST(TensorParallel, EvaluationHasTheBitsOfTrainingsLosses) {
  for (const char* name : {"gpt2", "one_kv_head", "sandwich"}) {
    expect_evaluation_has_the_bits_of_training(cuttable_form(name), name);
  }
}

// B.4 #2, #35 and #36.
TEST(TensorParallel, AnyVocabularyGivesTheSameLossWhereverTargetsLie) {
  for (const std::int64_t vocab_size : {8, 9, 15, 17, 41, 64}) {
    ModelShape shape = cuttable(tiny_model(vocab_size % 2 == 0), 8);
    shape.vocab_size = vocab_size;
    const ValuesByName weights = weights_of(shape);
    for (const std::int64_t target : {std::int64_t{0}, vocab_size / 2, vocab_size - 1}) {
      MicroBatch batch = micro_batch_of(shape);
      std::fill(batch.targets.begin(), batch.targets.end(), static_cast<std::int32_t>(target));
      const Computed whole = compute_whole(shape, weights, batch);
      for (const int degree : {2, 4, 8}) {
        const std::int64_t rows = (vocab_size + degree - 1) / degree;
        if ((degree - 1) * rows >= vocab_size) continue;  // the last rank would have none
        const auto ranks = compute_cut(shape, degree, weights, batch);
        EXPECT_LT(farthest(ranks[0].losses, whole.losses), 1e-5)
            << vocab_size << " tokens, target " << target << ", " << degree << " ranks";
        const ValuesByName gradients = whole_gradients(shape, ranks);
        for (const auto& [name, values] : whole.gradients) {
          EXPECT_LT(farthest(gradients.at(name), values),
                    1e-5 * farthest(values, std::vector<float>(values.size())))
              << vocab_size << " tokens, target " << target << ", " << degree << " ranks: " << name;
        }
      }
    }
  }
}

// B.4 #7. A mask from elsewhere moves nearly every gradient by much of its size.
TEST(TensorParallel, DropoutOfHalfOfEverythingDropsTheSameElements) {
  for (const char* name : {"gpt2", "fewer_kv_heads_than_ranks", "parallel"}) {
    ModelShape shape = cuttable_form(name);
    shape.dropout = 0.5;
    const Expected expected(shape);
    expected.expect_close(compute_cut(shape, 4, expected.weights, expected.batch), name);
  }
}

// B.4 #9: what is computed again is added up over ranks again.
TEST(TensorParallel, RecomputedActivationsGiveTheSameBits) {
  for (const ModelForm& form : tensor_rank_forms()) {
    const ValuesByName weights = weights_of(form.shape);
    const MicroBatch batch = micro_batch_of(form.shape);
    const auto kept = compute_cut(form.shape, 4, weights, batch);
    for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
      ModelShape shape = form.shape;
      shape.recompute = recompute;
      const auto again = compute_cut(shape, 4, weights, batch);
      for (std::size_t r = 0; r < kept.size(); ++r) {
        EXPECT_EQ(again[r].gradients, kept[r].gradients) << form.name << ", rank " << r;
      }
    }
  }
}

TEST(TensorParallel, ChunksOfLogitsAreThoseOfTheWholeModel) {
  ModelShape shape = cuttable(tiny_model(false), 4);
  shape.sequences = 16;  // 144 tokens
  const Expected all_at_once(shape);
  shape.logits_chunk_elements = 64 * 43;  // 64 tokens at a time, of the whole vocabulary
  const auto ranks = compute_cut(shape, 4, all_at_once.weights, all_at_once.batch);
  all_at_once.expect_close(ranks, "three chunks");
  const Computed whole = compute_whole(shape, all_at_once.weights, all_at_once.batch);
  const auto numel = [](const Computed& computed, const std::string& name) {
    for (const BufferSpec& buffer : computed.buffers) {
      if (buffer.name == name) return buffer.numel;
    }
    return std::int64_t{0};
  };
  EXPECT_EQ(numel(whole, "logits"), 64 * 43);
  EXPECT_EQ(numel(ranks[0], "logits"), 64 * 11);
  EXPECT_EQ(numel(ranks[3], "logits"), 64 * 10);
}

// Two documents of 5 and 3 tokens with one of padding, then one of 9.
TEST(TensorParallel, SeparateDocumentsStaySeparate) {
  static constexpr std::int32_t kStarts[] = {0, 5, 9, 18}, kLengths[] = {5, 3, 9},
                                kPositions[] = {0, 1, 2, 3, 4, 0, 1, 2, 0,
                                                0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (const char* name : {"gpt2", "fewer_kv_heads_than_ranks", "sandwich"}) {
    Expected expected(cuttable_form(name));
    expected.batch.pass.documents = {{kStarts, DType::kI32, std::ssize(kStarts)},
                                     {kLengths, DType::kI32, std::ssize(kLengths)},
                                     {kPositions, DType::kI32, std::ssize(kPositions)}};
    expected.batch.targets[8] = kernels::kNoTarget;
    expected.whole = compute_whole(expected.shape, expected.weights, expected.batch);
    expected.expect_close(compute_cut(expected.shape, 4, expected.weights, expected.batch), name);
  }
}

// 16-bit parts are rounded before they are added up: an error of the size of bf16's own.
TEST(TensorParallel, In16BitsGradientsDifferByTheRoundingOfActivations) {
  for (const ModelForm& form : tensor_rank_forms()) {
    ModelShape shape = form.shape;
    shape.dtype = DType::kBF16;
    const Expected expected(shape);
    expected.expect_close(compute_cut(shape, 4, expected.weights, expected.batch), form.name);
  }
}

// B.4 #28.
TEST(TensorParallel, EveryElementOfEveryParameterCountsOnceInNorms) {
  for (const ModelForm& form : tensor_rank_forms()) {
    for (const int degree : {1, 2, 4, 8}) {
      for (const UnitSpec& unit : model::parameter_table(form.shape)) {
        for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
          const ParameterSpec& parameter = unit.parameters[p];
          std::vector<int> counted(static_cast<std::size_t>(parameter.numel()));
          for (int r = 0; r < degree; ++r) {
            for (const auto& cuts : model::tensor_cut(form.shape, degree, r)) {
              for (const ParameterCut& cut : cuts) {
                if (cut.name != parameter.name) continue;
                EXPECT_EQ(cut.shape, parameter.shape);
                for (const HeldBox& held : cut.held) {
                  if (!held.counts) continue;
                  for_each_run({held.box}, cut.columns(), 0, held.box.numel(),
                               [&](const BoxRun& run) {
                                 for (std::int64_t i = 0; i < run.count; ++i) {
                                   ++counted[static_cast<std::size_t>(run.in_tensor + i)];
                                 }
                               });
                }
              }
            }
          }
          EXPECT_EQ(counted, std::vector<int>(counted.size(), 1))
              << form.name << ", " << degree << " ranks: " << parameter.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
