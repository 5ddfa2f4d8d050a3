#include "engine/plan/groups_text.h"

#include <fmt/format.h>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"

namespace sherd::engine {
namespace {

struct Count {
  std::int64_t tensors = 0, parameters = 0;
  bool frozen = false;
};

std::string count_text(const Count& count) {
  return fmt::format("{} tensor{}, {} parameters{}", count.tensors, count.tensors == 1 ? "" : "s",
                     count.parameters, count.frozen ? ", frozen" : "");
}

std::string rates_text(const optim::ParameterGroup& group, const optim::OptimizerOptions& all) {
  std::string text;
  if (group.lr_factor != 1.0f) text += fmt::format(", {:g} x lr", group.lr_factor);
  if (group.weight_decay) text += fmt::format(", decay {:g}", *group.weight_decay);
  if (group.beta1 != all.beta1 || group.beta2 != all.beta2) {
    text += fmt::format(", betas {:g} and {:g}", group.beta1, group.beta2);
  }
  if (group.eps != all.eps) text += fmt::format(", eps {:g}", group.eps);
  return text;
}

}  // namespace

std::string groups_text(const TrainingOptions& options) {
  const optim::OptimizerOptions& optimizer = options.optimizer;
  if (optimizer.groups.empty()) return "";
  std::vector<Count> counts(optimizer.groups.size() + 1);  // the last: in no group
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool trained = model::is_trained(options.model, parameter.name);
      if (!trained && options.model.adapter.active()) continue;  // of the adapter's base
      const int group = optimizer.group_of(parameter);
      Count& count = group < 0 ? counts.back() : counts[static_cast<std::size_t>(group)];
      ++count.tensors;
      count.frozen = !trained;
      count.parameters += parameter.numel();
    }
  }
  std::string text;
  for (std::size_t i = 0; i < optimizer.groups.size(); ++i) {
    const optim::ParameterGroup& group = optimizer.groups[i];
    std::string patterns;
    for (const std::string& pattern : group.patterns) {
      patterns += (patterns.empty() ? "" : ", ") + pattern;
    }
    text += fmt::format("group {} ({}): {}{}\n", i + 1, patterns, count_text(counts[i]),
                        rates_text(group, optimizer));
  }
  return text + "no group: " + count_text(counts.back());
}

}  // namespace sherd::engine
