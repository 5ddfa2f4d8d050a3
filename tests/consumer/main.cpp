// What a program does with the library: plans, trains a few steps, reads a checkpoint, generates.
// Its arguments: a recipe, and a run.output_dir. It knows the installed headers only.
#include <sherd/sherd.h>

#include <cstdio>
#include <exception>

namespace {

void use(const char* path, const char* output) {
  sherd::Recipe recipe = sherd::Recipe::load(path);
  recipe.set("run.output_dir", output).set_ranks(2);

  const sherd::Plan plan = sherd::plan(recipe);
  std::printf("planned %zu\n", plan.ranks.size());

  sherd::Trainer trainer(recipe);
  while (!trainer.is_done()) {
    const sherd::StepMetrics step = trainer.step();
    std::printf("loss %.17g\n", step.loss);
    if (trainer.evaluation_is_due()) std::printf("val_loss %.17g\n", trainer.evaluate().loss);
    trainer.save_if_due();
  }
  const std::string saved = trainer.save();

  const sherd::Checkpoint checkpoint(saved);
  for (const sherd::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.kind != "param") continue;
    std::printf("tensor %s", tensor.name.c_str());
    for (const float value : checkpoint.read_floats(tensor.name)) std::printf(" %a", value);
    std::printf("\n");
  }

  const sherd::GeneratedText text = sherd::generate(saved, "th", {.num_tokens = 4});
  std::printf("generated %lld\n", static_cast<long long>(text.num_tokens));

  try {
    recipe.set("optimizer.learning", "1").check();
  } catch (const sherd::UsageError& error) {
    std::printf("refused %s\n", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    use(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
  return 0;
}
