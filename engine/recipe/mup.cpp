#include "engine/recipe/mup.h"

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kKey = "model.mup_base_hidden_size";
constexpr std::string_view kLogitsScale = "model.logits_scale";

void check_mup_optimizer(Resolution& recipe) {
  using enum optim::OptimizerType;
  switch (const optim::OptimizerType type = recipe.values().optimizer.type) {
    case kAdamW:
    case kAdam:
    case kLion:
    case kSgd:
    case kMuon:
    case kDion:
      break;  // mup_rule in engine/train/parameter_groups.cpp
    case kAdafactor:
      recipe.refuse({"optimizer.type", kKey},
                    "{} has no rules for adafactor, which multiplies lr by the size of each "
                    "tensor. Use adamw, adam, lion, sgd, muon or dion.",
                    kKey);
      break;
    case kLamb:
    case kLars:
      recipe.refuse(
          {"optimizer.type", kKey},
          "{} has no rules for {}, whose trust ratios scale the updates already. Use adamw, "
          "adam, lion, sgd, muon or dion.",
          kKey, type == kLamb ? "lamb" : "lars");
      break;
  }
}

}  // namespace

double mup_width_factor(const Recipe& recipe) {
  const std::int64_t base = recipe.model.mup_base_hidden_size;
  if (base == 0) return 1.0;
  return static_cast<double>(recipe.model.hidden_size) / static_cast<double>(base);
}

void derive_mup(Resolution& recipe) {
  Recipe& values = recipe.values();
  if (values.model.mup_base_hidden_size == 0) return;
  recipe.derive(kLogitsScale, values.model.logits_scale, 1.0 / mup_width_factor(values));
}

void check_mup(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.model.mup_base_hidden_size == 0 || recipe.request().is_kept) return;
  if (!values.model.from.empty()) {
    recipe.refuse({kKey, "model.from"},
                  "{} changes what the model of {} computes. Leave it out to train that model.",
                  kKey, values.model.from);
  }
  if (values.adapter.type != AdapterChoice::kNone) {
    recipe.refuse({kKey, "adapter.type"},
                  "{} is for weights that are trained from the start, not for an adapter. Leave it "
                  "out.",
                  kKey);
  }
  const double scale = 1.0 / mup_width_factor(values);
  if (values.model.logits_scale != scale) {
    recipe.refuse({kLogitsScale, kKey},
                  "{} is {}, but muP sets it to mup_base_hidden_size / hidden_size = {}. Leave it "
                  "out.",
                  kLogitsScale, values.model.logits_scale, scale);
  }
  check_mup_optimizer(recipe);
}

}  // namespace sherd::engine
