#include "engine/preference/answers.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace sherd::engine {
namespace {

constexpr std::int32_t kNoTarget = -1;

// A token without a target has no loss, so its weight has no effect.
void fill_weights(std::span<float> weights, const Answer& answer, double derivative) {
  if (weights.empty()) return;
  std::ranges::fill(weights.subspan(static_cast<std::size_t>(answer.first),
                                    static_cast<std::size_t>(answer.count)),
                    static_cast<float>(-derivative));
}

class Scorer {
 public:
  Scorer(const PreferenceOptions& options, std::span<const float> losses,
         std::span<const std::int32_t> targets, std::span<const double> reference,
         std::span<float> weights)
      : options_(options),
        losses_(losses),
        targets_(targets),
        reference_(reference),
        weights_(weights) {}

  AnswerSums pairs(std::span<const Answer> answers) const {
    AnswerSums sums;
    for (std::size_t i = 0; i + 1 < answers.size(); i += 2) {
      const Answer &chosen = answers[i], &rejected = answers[i + 1];
      const PairLoss pair = pair_loss(options_, score(chosen), score(rejected));
      fill_weights(weights_, chosen, pair.d_chosen);
      fill_weights(weights_, rejected, pair.d_rejected);
      sums.add(AnswerSums::kLoss, pair.loss);
      sums.add(AnswerSums::kRewardChosen, pair.reward_chosen);
      sums.add(AnswerSums::kRewardRejected, pair.reward_rejected);
      sums.add(AnswerSums::kAccuracy, pair.reward_chosen > pair.reward_rejected ? 1.0 : 0.0);
      sums.add(AnswerSums::kLogpChosen, pair.logp_chosen);
      sums.add(AnswerSums::kLogpRejected, pair.logp_rejected);
      sums.add(AnswerSums::kNumChosen, 1.0);
      sums.add(AnswerSums::kNumRejected, 1.0);
    }
    return sums;
  }

  AnswerSums judged(std::span<const Answer> answers) const {
    AnswerSums sums;
    ExactSum ratios;
    for (std::size_t i = 1; i < answers.size(); i += 2) {
      const AnswerScore other = score(answers[i]);
      ratios.add(other.log_probability - other.reference);
      fill_weights(weights_, answers[i], 0.0);
    }
    const double count = static_cast<double>(answers.size() / 2);
    const double divergence = count > 0.0 ? std::max(0.0, ratios.value() / count) : 0.0;
    for (std::size_t i = 0; i + 1 < answers.size(); i += 2) {
      const AnswerScore answer = score(answers[i]);
      const bool wanted = answers[i].is_wanted;
      const JudgedLoss judged = judged_loss(options_, answer, wanted, divergence);
      fill_weights(weights_, answers[i], judged.d_answer);
      sums.add(AnswerSums::kLoss, judged.loss);
      sums.add(wanted ? AnswerSums::kRewardChosen : AnswerSums::kRewardRejected, judged.reward);
      sums.add(wanted ? AnswerSums::kLogpChosen : AnswerSums::kLogpRejected,
               answer.log_probability);
      sums.add(wanted ? AnswerSums::kNumChosen : AnswerSums::kNumRejected, 1.0);
    }
    if (count > 0.0) {
      sums.add(AnswerSums::kDivergence, divergence);
      sums.add(AnswerSums::kNumDivergences, 1.0);
    }
    return sums;
  }

 private:
  AnswerScore score(const Answer& answer) const {
    AnswerScore score = score_of(answer, losses_, targets_);
    if (options_.has_reference()) {
      SHERD_CHECK(answer.number >= 0 && answer.number < std::ssize(reference_),
                  "answer {} of {} references", answer.number, reference_.size());
      score.reference = reference_[static_cast<std::size_t>(answer.number)];
    }
    return score;
  }

  const PreferenceOptions& options_;
  std::span<const float> losses_;
  std::span<const std::int32_t> targets_;
  std::span<const double> reference_;
  std::span<float> weights_;
};

}  // namespace

void AnswerSums::add(const AnswerSums& other) {
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i].add(other.sums_[i]);
}

void AnswerSums::add(std::span<const double> numbers) {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].add(numbers.subspan(i * ExactSum::kNumbers, ExactSum::kNumbers));
  }
}

std::vector<double> AnswerSums::numbers() const {
  std::vector<double> all;
  for (const ExactSum& sum : sums_) std::ranges::copy(sum.numbers(), std::back_inserter(all));
  return all;
}

PreferenceReport report_of(const PreferenceOptions& options, const AnswerSums& sums) {
  const auto mean = [&](AnswerSums::Of what, AnswerSums::Of count) {
    return sums[what].value() / std::max(1.0, sums[count].value());
  };
  PreferenceReport report{.has_pairs = options.has_pairs()};
  report.num_chosen = static_cast<std::int64_t>(sums[AnswerSums::kNumChosen].value());
  report.num_rejected = static_cast<std::int64_t>(sums[AnswerSums::kNumRejected].value());
  report.rewards_chosen = mean(AnswerSums::kRewardChosen, AnswerSums::kNumChosen);
  report.rewards_rejected = mean(AnswerSums::kRewardRejected, AnswerSums::kNumRejected);
  report.margins = report.rewards_chosen - report.rewards_rejected;
  report.accuracies = mean(AnswerSums::kAccuracy, AnswerSums::kNumChosen);
  report.logps_chosen = mean(AnswerSums::kLogpChosen, AnswerSums::kNumChosen);
  report.logps_rejected = mean(AnswerSums::kLogpRejected, AnswerSums::kNumRejected);
  report.divergence = mean(AnswerSums::kDivergence, AnswerSums::kNumDivergences);
  return report;
}

std::vector<std::pair<std::string, double>> metrics_of(const PreferenceReport& report) {
  std::vector<std::pair<std::string, double>> metrics;
  if (report.num_chosen > 0) {
    metrics.emplace_back("rewards/chosen", report.rewards_chosen);
    metrics.emplace_back("logps/chosen", report.logps_chosen);
  }
  if (report.num_rejected > 0) {
    metrics.emplace_back("rewards/rejected", report.rewards_rejected);
    metrics.emplace_back("logps/rejected", report.logps_rejected);
  }
  if (report.num_chosen > 0 && report.num_rejected > 0) {
    metrics.emplace_back("rewards/margins", report.margins);
  }
  metrics.emplace_back(report.has_pairs ? "rewards/accuracies" : "kl",
                       report.has_pairs ? report.accuracies : report.divergence);
  return metrics;
}

AnswerScore score_of(const Answer& answer, std::span<const float> losses,
                     std::span<const std::int32_t> targets) {
  AnswerScore score;
  for (std::int64_t t = answer.first; t < answer.first + answer.count; ++t) {
    const auto token = static_cast<std::size_t>(t);
    if (targets[token] == kNoTarget) continue;
    score.log_probability -= static_cast<double>(losses[token]);
    ++score.tokens;
  }
  return score;
}

AnswerSums score_answers(const PreferenceOptions& options, std::span<const Answer> answers,
                         std::span<const float> losses, std::span<const std::int32_t> targets,
                         std::span<const double> reference, std::span<float> weights) {
  SHERD_CHECK(answers.size() % 2 == 0, "{} answers in examples of two", answers.size());
  std::ranges::fill(weights, 0.0f);
  const Scorer scorer(options, losses, targets, reference, weights);
  return options.has_pairs() ? scorer.pairs(answers) : scorer.judged(answers);
}

}  // namespace sherd::engine
