/// Losses on whole answers: preferences between two answers to a prompt, and judgements of single
/// answers. Each is a function of log-probabilities of answers, and comes with its derivatives.
///
///   l       log-probability of an answer: the sum of ln p of its tokens; m: l / tokens
///   r       l minus the reference's, that is, of the weights that training began with
///   h       r of the chosen answer minus r of the rejected one
///
///   sigmoid   -(1 - e) ln s(b h) - e ln s(-b h)          DPO (Rafailov et al., arXiv:2305.18290);
///                                                        e > 0: cDPO
///   robust    (-(1 - e) ln s(b h) + e ln s(-b h)) / (1 - 2 e)         arXiv:2403.00409
///   hinge     max(0, 1 - b h)                                         SLiC, arXiv:2309.06657
///   ipo       (h - 1 / (2 b))^2, of m instead of l                    arXiv:2310.12036
///   apo_zero  1 - s(b r_chosen) + s(b r_rejected)                     arXiv:2408.06266
///   apo_down  s(b r_chosen) + 1 - s(b h)                              the same
///   orpo      -m_chosen - b ln s(o), o = logit(p_chosen) - logit(p_rejected), p = e^m
///                                                                     arXiv:2403.07691
///   simpo     sigmoid's with h = m_chosen - m_rejected - g / b        arXiv:2405.14734
///   kto       desirable:   w_d (1 - s(b (r - k)))                     arXiv:2402.01306
///             undesirable: w_u (1 - s(b (k - r)))
///             k: max(0, mean of r over answers to other prompts), taken as a constant
///
/// b: beta, e: label_smoothing, g: simpo_gamma, s: the logistic function. Names and forms are those
/// of TRL. Two differ: orpo's first term is a mean over the answer's tokens, without the prompt's,
/// and is averaged over pairs.
///
/// Rewards  b r; of orpo and simpo b m.
/// Bits     plain f64; the same anywhere.
#pragma once

#include <cstdint>

namespace sherd::engine {

enum class PreferenceLoss : std::uint8_t {
  kNone,
  kSigmoid,
  kRobust,
  kHinge,
  kIpo,
  kApoZero,
  kApoDown,
  kOrpo,
  kSimpo,
  kKto
};

struct PreferenceOptions {
  PreferenceLoss loss = PreferenceLoss::kNone;
  double beta = 0.1, label_smoothing = 0.0, simpo_gamma = 0.5;
  double desirable_weight = 1.0, undesirable_weight = 1.0;

  bool active() const { return loss != PreferenceLoss::kNone; }
  /// Examples are pairs, or else judged answers.
  bool has_pairs() const { return active() && loss != PreferenceLoss::kKto; }
  bool has_reference() const {
    return active() && loss != PreferenceLoss::kOrpo && loss != PreferenceLoss::kSimpo;
  }
  bool has_means() const {
    return loss == PreferenceLoss::kIpo || loss == PreferenceLoss::kOrpo ||
           loss == PreferenceLoss::kSimpo;
  }
};

/// Of one answer.
struct AnswerScore {
  double log_probability = 0.0, reference = 0.0;  ///< sums over its tokens
  std::int64_t tokens = 0;
};

struct PairLoss {
  double loss = 0.0;
  double d_chosen = 0.0, d_rejected = 0.0;  ///< derivatives with respect to l
  double reward_chosen = 0.0, reward_rejected = 0.0;
  double logp_chosen = 0.0, logp_rejected = 0.0;  ///< as reported: l, or m
};
PairLoss pair_loss(const PreferenceOptions& options, const AnswerScore& chosen,
                   const AnswerScore& rejected);

struct JudgedLoss {
  double loss = 0.0, d_answer = 0.0, reward = 0.0;
};
/// kto. `divergence`: k.
JudgedLoss judged_loss(const PreferenceOptions& options, const AnswerScore& answer, bool is_wanted,
                       double divergence);

}  // namespace sherd::engine
