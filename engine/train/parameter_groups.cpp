#include "engine/train/parameter_groups.h"

#include <algorithm>
#include <functional>
#include <string>

#include "engine/model/parameters.h"
#include "engine/recipe/mup.h"
#include "optim/matrices/matrix_plan.h"

namespace sherd::engine {
namespace {

float as_float(double value) {
  return static_cast<float>(value);
}

optim::ParameterGroup group_of(const ParameterGroup& group, const OptimizerKeys& optimizer) {
  const std::array<double, 2> betas = group.betas.value_or(optimizer.betas);
  return {.patterns = group.parameters,
          .lr_factor = as_float(group.lr_factor),
          .weight_decay =
              group.weight_decay ? std::optional(as_float(*group.weight_decay)) : std::nullopt,
          .beta1 = as_float(betas[0]),
          .beta2 = as_float(betas[1]),
          .eps = as_float(group.eps.value_or(optimizer.eps)),
          .adamw = group.optimizer == "adamw"};
}

// Multiplies the rates of the parameters that it applies to.
struct Rule {
  double lr_factor = 1.0, eps_factor = 1.0;
  std::function<bool(const UnitSpec& unit, const ParameterSpec& parameter)> applies;

  optim::ParameterGroup applied_to(optim::ParameterGroup group) const {
    group.lr_factor = as_float(group.lr_factor * lr_factor);
    group.eps = as_float(group.eps * eps_factor);
    return group;
  }
};

bool is_hidden_matrix(const ParameterSpec& parameter) {
  return parameter.name.starts_with("block.") && parameter.shape.size() == 2 &&
         parameter.shape[0] > 1;
}

Rule mup_rule(const Recipe& recipe, const optim::OptimizerOptions& options) {
  const double m = mup_width_factor(recipe);
  using enum optim::OptimizerType;
  Rule rule{1.0 / m, 1.0 / m, {}};
  if (options.type == kSgd) {
    rule.lr_factor = m;
    rule.applies = [](const UnitSpec&, const ParameterSpec& parameter) {
      return !is_hidden_matrix(parameter);
    };
  } else if (options.type == kMuon || options.type == kDion) {
    rule.applies = [options](const UnitSpec& unit, const ParameterSpec& parameter) {
      return is_hidden_matrix(parameter) && !optim::is_by_matrix(options, unit, parameter);
    };
  } else {
    rule.applies = [](const UnitSpec&, const ParameterSpec& parameter) {
      return is_hidden_matrix(parameter);
    };
  }
  return rule;
}

// "block.3.mlp.up.weight" in every block.
std::string in_all_blocks(const std::string& name) {
  constexpr std::string_view kBlock = "block.";
  if (!name.starts_with(kBlock)) return name;
  return std::string(kBlock) + "*" + name.substr(name.find('.', kBlock.size()));
}

// What one group has, or those in none: the parameters that the rule applies to, and how many there
// are in all.
struct Members {
  std::vector<std::string> ruled;
  std::size_t all = 0;
};

std::vector<optim::ParameterGroup> with_rule(const optim::OptimizerOptions& options,
                                             const std::vector<UnitSpec>& table, const Rule& rule) {
  std::vector<Members> members(options.groups.size() + 1);  // the last: in no group
  for (const UnitSpec& unit : table) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const int group = options.group_of(parameter);
      Members& own = group < 0 ? members.back() : members[static_cast<std::size_t>(group)];
      ++own.all;
      if (rule.applies(unit, parameter)) own.ruled.push_back(parameter.name);
    }
  }
  std::vector<optim::ParameterGroup> groups;
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    const Members& own = members[i];
    if (!own.ruled.empty()) {
      groups.push_back(rule.applied_to(options.groups[i]));
      if (own.ruled.size() == own.all) continue;
      groups.back().patterns = own.ruled;
    }
    groups.push_back(options.groups[i]);
  }
  std::vector<std::string> patterns;
  for (const std::string& name : members.back().ruled) {
    std::string pattern = in_all_blocks(name);
    if (std::ranges::find(patterns, pattern) == patterns.end()) {
      patterns.push_back(std::move(pattern));
    }
  }
  if (!patterns.empty()) {
    groups.push_back(rule.applied_to(options.rates_of(-1)));
    groups.back().patterns = std::move(patterns);
  }
  return groups;
}

}  // namespace

std::vector<optim::ParameterGroup> parameter_groups(const Recipe& recipe,
                                                    const model::ModelShape& shape) {
  const OptimizerKeys& optimizer = recipe.optimizer;
  optim::OptimizerOptions options;
  options.type = optimizer.type;
  options.beta1 = as_float(optimizer.betas[0]);
  options.beta2 = as_float(optimizer.betas[1]);
  options.eps = as_float(optimizer.eps);
  for (const ParameterGroup& group : optimizer.groups) {
    options.groups.push_back(group_of(group, optimizer));
  }
  const bool adapts = recipe.adapter.type == AdapterChoice::kLora;
  if (adapts && recipe.adapter.lora_plus_ratio != 1.0) {
    const Rule rule{recipe.adapter.lora_plus_ratio, 1.0,
                    [](const UnitSpec&, const ParameterSpec& parameter) {
                      return parameter.name.ends_with(".lora_b");
                    }};
    options.groups = with_rule(options, model::parameter_table(shape), rule);
  }
  if (mup_width_factor(recipe) != 1.0) {
    options.groups = with_rule(options, model::parameter_table(shape), mup_rule(recipe, options));
  }
  return options.groups;
}

}  // namespace sherd::engine
