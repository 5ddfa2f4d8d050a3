// T tokens, V vocabulary.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/logits_form.h"
#include "kernels/cpu/taught_row.h"
#include "kernels/cpu/token.h"
#include "kernels/cpu/wide.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

template <class T>
void scale_row(T* row, std::int64_t width, float factor) {
  for_each_block(0, width, [&](std::int64_t first, int count) {
    BlockScratch in, out;
    const float* x = load_block(row + first, count, in);
    float* y = block_target(row + first, out);
#pragma omp simd
    for (int i = 0; i < count; ++i) y[i] = factor * x[i];
    store_block(row + first, count, out);
  });
}

// sum of exp(x - base) over a row: `base` is nearly the target's logit.
struct RowSum {
  float base;
  double sum = 0.0;
};

// One pass: exponentials are taken of what a logit exceeds the target's by, which needs no maximum
// first, but for the rare logit that exceeds it by too much for a float: then that is the base from
// there on. `keep`: the exponentials replace the logits, which are plain floats.
template <class T, class Form>
RowSum sum_exponentials(T* logits_V, std::int64_t V, const Form& form, float target_logit,
                        bool keep) {
  constexpr float kMost = 30.0f;  // then sums and what divides by them stay far from either end
  RowSum row{target_logit};
  for_each_block(0, V, [&](std::int64_t first, int count) {
    BlockScratch in, shaped, out;
    const float* x = form.shape(load_block(logits_V + first, count, in), count, shaped);
    const float maximum = block_maximum(x, count);
    if (!(maximum - row.base <= kMost)) {
      const float factor = fast_exp(row.base - maximum);
      row.sum *= factor;
      if (keep) scale_row(logits_V, first, factor);
      row.base = maximum;
    }
    const float base = row.base;
    float* e = keep ? block_target(logits_V + first, out) : out.value;
    each_element(count, [=](std::int64_t i) { e[i] = fast_exp(x[i] - base); });
    LaneSum sum;
    sum.add_values(e, count);
    row.sum += static_cast<double>(sum.total());
  });
  return row;
}

// The row becomes its gradient.
template <class T, class Form>
void differentiate_row(T* logits_V, std::int64_t V, const Form& form, float factor, float base) {
  for_each_block(0, V, [&](std::int64_t first, int count) {
    BlockScratch in, shaped, out;
    const float* x = form.shape(load_block(logits_V + first, count, in), count, shaped);
    float* gradient = block_target(logits_V + first, out);
    each_element(count, [=](std::int64_t i) {
      gradient[i] = factor * fast_exp(x[i] - base) * form.slope(x[i]);
    });
    store_block(logits_V + first, count, out);
  });
}

// One row of cross-entropy: the loss is returned and the row becomes its gradient.
template <class T, class Form>
float cross_entropy_row(T* logits_V, std::int64_t V, std::int64_t target, const Form& form,
                        const CrossEntropy& args, float scale, float* z_loss) {
  constexpr bool kKeeps = std::is_same_v<T, float> && Form::kPlain;
  const float target_logit = form.shape(static_cast<float>(logits_V[target]));
  const RowSum row = sum_exponentials(logits_V, V, form, target_logit, kKeeps && args.gradient);
  const auto total = static_cast<float>(row.sum);
  const float lse = args.z_loss ? fast_log(total) + row.base : 0.0f;
  if (args.z_loss) *z_loss = z_loss_of(args.z_loss.coefficient, lse);
  if (args.gradient) {
    const float base = row.base;
    float factor = scale / total;
    if (args.z_loss) factor *= z_loss_factor(args.z_loss.coefficient, lse);
    const float at_target = factor * fast_exp(target_logit - base) - scale;
    if constexpr (kKeeps) {
      scale_row(logits_V, V, factor);
    } else {
      differentiate_row(logits_V, V, form, factor, base);
    }
    logits_V[target] = static_cast<T>(at_target * form.slope(target_logit));
  }
  return fast_log(total) + (row.base - target_logit);
}

// The same with a teacher, token `t`.
template <class T, class Form>
float taught_row(T* logits_V, std::int64_t t, std::int64_t target, const Form& form,
                 const CrossEntropy& args) {
  const std::int64_t V = args.vocab_size;
  const TaughtTokens taught(args.teacher, t);
  const float maximum = maximum_of_row(logits_V, V, form);
  const float sum = sum_of_exponentials(logits_V, V, form, maximum);
  const float tempered =
      sum_of_exponentials(logits_V, V, form, maximum, 1.0f / taught.form.temperature);
  const float above = form.shape(static_cast<float>(logits_V[target])) - maximum;
  args.teacher.divergences.as<float>()[t] = taught.divergence(
      product_of_row(taught, logits_V, 0, V, VocabularyRows{}, V, form, maximum), tempered);
  differentiate_taught_row(taught, {maximum, sum, tempered}, args.grad_scale, target,
                           VocabularyRows{}, V, form, logits_V);
  return fast_log(sum) - above;
}

}  // namespace

void cross_entropy(ThreadTeam& team, const CrossEntropy& args) {
  const std::int64_t V = args.vocab_size;
  const auto* targets_T = args.targets.as<std::int32_t>();
  dispatch_float(args.logits.dtype, [&]<class T>(T) {
    T* logits_TV = args.logits.as<T>();
    const auto all_rows = [&](const auto& form) {
      parallel_rows(team, args.tokens, V, [&](std::int64_t t) {
        if (targets_T[t] == kNoTarget) {
          if (args.gradient) std::fill_n(logits_TV + t * V, V, T{});
          args.losses.as<float>()[t] = 0.0f;
          if (args.z_loss) args.z_loss.losses.as<float>()[t] = 0.0f;
          if (args.teacher) args.teacher.divergences.as<float>()[t] = 0.0f;
          return;
        }
        const std::int64_t target = checked_token(targets_T[t], V);
        if (args.teacher) {
          args.losses.as<float>()[t] = taught_row(logits_TV + t * V, t, target, form, args);
          return;
        }
        float* z_loss = args.z_loss ? args.z_loss.losses.as<float>() + t : nullptr;
        const float scale =
            args.weights ? args.grad_scale * args.weights.as<float>()[t] : args.grad_scale;
        args.losses.as<float>()[t] =
            cross_entropy_row(logits_TV + t * V, V, target, form, args, scale, z_loss);
      });
    };
    args.form.is_neutral() ? all_rows(PlainLogits{}) : all_rows(ShapedLogits(args.form));
  });
}

void shape_logits(ThreadTeam& team, const LogitsForm& form, Tensor logits) {
  const ShapedLogits shaped(form);
  dispatch_float(logits.dtype, [&]<class T>(T) {
    T* x = logits.as<T>();
    parallel_blocks(team, logits.numel, [&](std::int64_t first, int count) {
      BlockScratch in, out;
      const float* values = load_block(x + first, count, in);
      float* target = block_target(x + first, out);
#pragma omp simd
      for (int i = 0; i < count; ++i) target[i] = shaped.shape(values[i]);
      store_block(x + first, count, out);
    });
  });
}

}  // namespace sherd::kernels::cpu
