/// The answers of a micro-batch, and what a loss on them needs and reports.
///
/// An example is two neighbouring answers: the chosen and the rejected one of a pair; or a judged
/// answer, then an answer to the same prompt that belongs to another one (preference_loss.h, k).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/exact_sum.h"
#include "engine/preference/preference_loss.h"

namespace sherd::engine {

/// One document of a micro-batch.
struct Answer {
  std::int64_t first = 0, count = 0;  ///< its tokens, counted from the micro-batch's first
  std::int64_t number = 0;            ///< of all documents of the run's data
  bool is_wanted = false;             ///< of a judged answer
};

/// What is added up over answers, exactly, so that it depends on neither ranks nor micro-steps.
class AnswerSums {
 public:
  enum Of {
    kLoss,
    kRewardChosen,
    kRewardRejected,
    kAccuracy,
    kLogpChosen,
    kLogpRejected,
    kDivergence,
    kNumChosen,
    kNumRejected,
    kNumDivergences,
    kCount
  };
  static constexpr int kNumbers = kCount * ExactSum::kNumbers;

  void add(Of what, double value) { sums_[what].add(value); }
  void add(const AnswerSums& other);
  void add(std::span<const double> numbers);  ///< [kNumbers], of `numbers`
  std::vector<double> numbers() const;
  const ExactSum& operator[](Of what) const { return sums_[what]; }

 private:
  std::array<ExactSum, kCount> sums_;
};

/// Means over a step or an evaluation, by TRL's names: rewards/chosen, ...
struct PreferenceReport {
  bool has_pairs = true;
  std::int64_t num_chosen = 0, num_rejected = 0;  ///< means of nothing are 0, and not reported
  double rewards_chosen = 0.0, rewards_rejected = 0.0, margins = 0.0;
  double accuracies = 0.0;  ///< of pairs: how often the chosen answer's reward is higher
  double logps_chosen = 0.0, logps_rejected = 0.0;
  double divergence = 0.0;  ///< of judged answers: k
};
/// By name, in the order of metrics.jsonl.
std::vector<std::pair<std::string, double>> metrics_of(const PreferenceReport& report);
PreferenceReport report_of(const PreferenceOptions& options, const AnswerSums& sums);

/// Loss and derivatives of a micro-batch's answers.
///
/// Shapes   losses f32 [T]: -ln p of each token, 0 without a target. `targets` i32 [T]. `weights`
///          f32 [T], or empty: the derivative of the micro-batch's loss with respect to losses[t].
///          `reference`: by Answer::number; empty if the loss has none.
AnswerSums score_answers(const PreferenceOptions& options, std::span<const Answer> answers,
                         std::span<const float> losses, std::span<const std::int32_t> targets,
                         std::span<const double> reference, std::span<float> weights);

/// The log-probability of an answer, and how many tokens of it have a target.
AnswerScore score_of(const Answer& answer, std::span<const float> losses,
                     std::span<const std::int32_t> targets);

}  // namespace sherd::engine
