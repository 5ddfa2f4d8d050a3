// Settings of any size: a plan of the memory, or one sentence.
#include "engine/plan/world_plan.h"
#include "tests/fuzz/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sherd;
  fuzz::expect_answer([&] {
    auto recipe = fuzz::recipe_with({reinterpret_cast<const char*>(data), size}).values;
    // What a plan costs grows with these two alone.
    if (recipe.world_size() > 64 || recipe.model.num_layers > 64) return;
    recipe.run.device = engine::DeviceChoice::kCpu;
    const engine::WorldPlan plan = engine::plan_world(recipe);
    fuzz::demand(plan.all_arenas_bytes() > 0, "a plan has bytes");
  });
  return 0;
}
