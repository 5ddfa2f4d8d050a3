// T tokens, V of the vocabulary's rows, R ranks.
#include "kernels/cpu/cut_cross_entropy.h"

#include <algorithm>

#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/logits_form.h"
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

// Calls `visit(first, count, z)` for the blocks of a row as the softmax sees them.
template <class T, class Form, class Visit>
void for_each_shaped_block(const T* logits_V, std::int64_t V, const Form& form,
                           const Visit& visit) {
  for_each_block(0, V, [&](std::int64_t first, int count) {
    BlockScratch in, shaped;
    visit(first, count, form.shape(load_block(logits_V + first, count, in), count, shaped));
  });
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

template <class T, class Form>
float sum_of_exponentials(const T* logits, std::int64_t rows, const Form& form, float maximum) {
  double sum = 0.0;
  for_each_shaped_block(logits, rows, form, [&](std::int64_t, int count, const float* z) {
    BlockScratch out;
#pragma omp simd
    for (int i = 0; i < count; ++i) out.value[i] = fast_exp(z[i] - maximum);
    LaneSum lanes;
    lanes.add_values(out.value, count);
    sum += static_cast<double>(lanes.total());
  });
  return static_cast<float>(sum);
}

// Neighbours are added, then neighbouring sums. Overwrites them.
float sum_of_groups(float* numbers, int count) {
  for (; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) numbers[i] = numbers[2 * i] + numbers[2 * i + 1];
  }
  return numbers[0];
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
    float maximum = -std::numeric_limits<float>::infinity();
    for_each_shaped_block(logits_V, args.num_rows, form,
                          [&](std::int64_t, int count, const float* z) {
                            maximum = std::max(maximum, block_maximum(z, count));
                          });
    maxima_T[t] = maximum;
  });
}

void exponential_sums(ThreadTeam& team, const CutCrossEntropy& args) {
  const auto* targets_T = args.targets.as<std::int32_t>();
  auto *sums_T = args.sums.as<float>(), *targets_above_T = sums_T + args.tokens;
  for_each_token(team, args, [&](std::int64_t t, const auto* logits_V, const auto& form) {
    sums_T[t] = targets_above_T[t] = 0.0f;
    if (targets_T[t] == kNoTarget) return;
    const float maximum = maximum_of(args, t);
    float of_groups[kMostSumGroups];
    for (int group = 0; group < args.groups; ++group) {
      const std::int64_t size = args.groups == 1 ? args.num_rows : args.rows_of_a_group;
      const std::int64_t first = std::min(group * size, args.num_rows);
      const std::int64_t end = std::min(first + size, args.num_rows);
      of_groups[group] = sum_of_exponentials(logits_V + first, end - first, form, maximum);
    }
    sums_T[t] = sum_of_groups(of_groups, args.groups);
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
      if (args.gradient) std::fill_n(logits_V, args.num_rows, T{});
      return;
    }
    losses_T[t] = fast_log(sums_T[t]) - targets_above_T[t];
    if (args.z_loss) {
      const float lse = fast_log(sums_T[t]) + maximum_of(args, t);
      z_losses_T[t] = z_loss_of(args.z_loss.coefficient, lse);
    }
    if (!args.gradient) return;
    const float scale =
        args.weights ? args.grad_scale * args.weights.as<float>()[t] : args.grad_scale;
    differentiate_row(args, form, scale, maximum_of(args, t), sums_T[t],
                      row_of_token(args.rows, args.num_rows, targets_T[t]), logits_V);
  });
}

}  // namespace sherd::kernels::cpu
