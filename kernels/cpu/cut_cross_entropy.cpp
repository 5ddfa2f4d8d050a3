// T tokens, V of the vocabulary's rows, R ranks.
#include "kernels/cpu/cut_cross_entropy.h"

#include <algorithm>

#include "kernels/cpu/shaped_rows.h"
#include "kernels/cpu/taught_row.h"
#include "kernels/cpu/token.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// m[t]: the largest of all ranks' maxima.
float maximum_of(const CutCrossEntropy& args, std::int64_t t) {
  const auto* maxima_RT = args.maxima.as<float>();
  float maximum = maxima_RT[t];
  for (int r = 1; r < args.num_ranks; ++r) {
    maximum = std::max(maximum, maxima_RT[r * args.tokens + t]);
  }
  return maximum;
}

// Calls `visit(t, logits_V, form)` for all tokens.
template <class Visit>
void for_each_token(ThreadTeam& team, const CutCrossEntropy& args, const Visit& visit) {
  dispatch_float(args.logits.dtype, [&]<class T>(T) {
    const auto all = [&](const auto& form) {
      parallel_rows(team, args.tokens, args.num_rows, [&](std::int64_t t) {
        visit(t, args.logits.as<T>() + t * args.num_rows, form);
      });
    };
    args.form.is_neutral() ? all(PlainLogits{}) : all(ShapedLogits(args.form));
  });
}

// Neighbours are added, then neighbouring sums. Overwrites them.
float sum_of_groups(float* numbers, int count) {
  for (; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) numbers[i] = numbers[2 * i] + numbers[2 * i + 1];
  }
  return numbers[0];
}

// The tree of `sum(first, end)` over the groups of rows.
template <class Sum>
float sum_over_groups(const CutCrossEntropy& args, const Sum& sum) {
  float of_groups[kMostSumGroups];
  for (int group = 0; group < args.groups; ++group) {
    const std::int64_t size = args.groups == 1 ? args.num_rows : args.rows_of_a_group;
    const std::int64_t first = std::min(group * size, args.num_rows);
    of_groups[group] = sum(first, std::min(first + size, args.num_rows));
  }
  return sum_of_groups(of_groups, args.groups);
}

template <class T, class Form>
void add_teacher_sums(const CutCrossEntropy& args, std::int64_t t, const T* logits_V,
                      const Form& form, float maximum) {
  const TaughtTokens taught(args.teacher, t);
  auto* tempered_T = args.sums.as<float>() + 2 * args.tokens;
  tempered_T[t] = sum_over_groups(args, [&](std::int64_t first, std::int64_t end) {
    return sum_of_exponentials(logits_V + first, end - first, form, maximum,
                               1.0f / taught.form.temperature);
  });
  tempered_T[args.tokens + t] = sum_over_groups(args, [&](std::int64_t first, std::int64_t end) {
    return product_of_row(taught, logits_V, first, end, args.rows, args.num_rows, form, maximum);
  });
}

template <class T, class Form>
void differentiate_row(const CutCrossEntropy& args, const Form& form, float scale, float maximum,
                       float sum, std::int64_t target_row, T* logits_V) {
  float factor = scale / sum;
  if (args.z_loss) factor *= z_loss_factor(args.z_loss.coefficient, fast_log(sum) + maximum);
  const float target_logit =
      target_row < 0 ? 0.0f : form.shape(static_cast<float>(logits_V[target_row]));
  for_each_shaped_block(logits_V, args.num_rows, form,
                        [&](std::int64_t first, int count, const float* z) {
                          BlockScratch out;
                          float* gradient = block_target(logits_V + first, out);
#pragma omp simd
                          for (int i = 0; i < count; ++i) {
                            gradient[i] = factor * fast_exp(z[i] - maximum) * form.slope(z[i]);
                          }
                          store_block(logits_V + first, count, out);
                        });
  if (target_row < 0) return;
  const float at_target = factor * fast_exp(target_logit - maximum) - scale;
  logits_V[target_row] = static_cast<T>(at_target * form.slope(target_logit));
}

}  // namespace

void logit_maxima(ThreadTeam& team, const CutCrossEntropy& args) {
  auto* maxima_T = args.maxima.as<float>() + args.rank * args.tokens;
  for_each_token(team, args, [&](std::int64_t t, const auto* logits_V, const auto& form) {
    maxima_T[t] = maximum_of_row(logits_V, args.num_rows, form);
  });
}

void exponential_sums(ThreadTeam& team, const CutCrossEntropy& args) {
  const auto* targets_T = args.targets.as<std::int32_t>();
  auto *sums_T = args.sums.as<float>(), *targets_above_T = sums_T + args.tokens;
  for_each_token(team, args, [&](std::int64_t t, const auto* logits_V, const auto& form) {
    for (std::int64_t i = 0; i < args.num_sums(); ++i) sums_T[i * args.tokens + t] = 0.0f;
    if (targets_T[t] == kNoTarget) return;
    const float maximum = maximum_of(args, t);
    sums_T[t] = sum_over_groups(args, [&](std::int64_t first, std::int64_t end) {
      return sum_of_exponentials(logits_V + first, end - first, form, maximum);
    });
    if (args.teacher) add_teacher_sums(args, t, logits_V, form, maximum);
    const std::int64_t row = row_of_token(args.rows, args.num_rows, targets_T[t]);
    if (row >= 0) targets_above_T[t] = form.shape(static_cast<float>(logits_V[row])) - maximum;
  });
}

void cut_cross_entropy(ThreadTeam& team, const CutCrossEntropy& args) {
  const auto* targets_T = args.targets.as<std::int32_t>();
  const auto *sums_T = args.sums.as<float>(), *targets_above_T = sums_T + args.tokens;
  auto *losses_T = args.losses.as<float>(), *z_losses_T = args.z_loss.losses.as<float>();
  for_each_token(team, args, [&]<class T>(std::int64_t t, T* logits_V, const auto& form) {
    if (targets_T[t] == kNoTarget) {
      losses_T[t] = 0.0f;
      if (args.z_loss) z_losses_T[t] = 0.0f;
      if (args.teacher) args.teacher.divergences.as<float>()[t] = 0.0f;
      if (args.gradient) std::fill_n(logits_V, args.num_rows, T{});
      return;
    }
    losses_T[t] = fast_log(sums_T[t]) - targets_above_T[t];
    if (args.z_loss) {
      const float lse = fast_log(sums_T[t]) + maximum_of(args, t);
      z_losses_T[t] = z_loss_of(args.z_loss.coefficient, lse);
    }
    if (!args.gradient) return;
    const std::int64_t target_row = row_of_token(args.rows, args.num_rows, targets_T[t]);
    if (args.teacher) {
      const TaughtTokens taught(args.teacher, t);
      const float tempered = sums_T[2 * args.tokens + t];
      args.teacher.divergences.as<float>()[t] =
          taught.divergence(sums_T[3 * args.tokens + t], tempered);
      return differentiate_taught_row(taught, {maximum_of(args, t), sums_T[t], tempered},
                                      args.grad_scale, target_row, args.rows, args.num_rows, form,
                                      logits_V);
    }
    const float scale =
        args.weights ? args.grad_scale * args.weights.as<float>()[t] : args.grad_scale;
    differentiate_row(args, form, scale, maximum_of(args, t), sums_T[t], target_row, logits_V);
  });
}

}  // namespace sherd::kernels::cpu
