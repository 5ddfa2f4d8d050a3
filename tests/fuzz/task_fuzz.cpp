// An arbitrary file of questions: read, or refused in one sentence.
#include "engine/data/task.h"

#include <vector>

#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {
namespace {

void use(Bytes bytes) {
  data::TaskLimits limits{.vocab_size = static_cast<std::int64_t>(1 + bytes.below(65'536)),
                          .seq_length = 1 + bytes.byte() % 40};
  if (bytes.byte() % 2 == 1) limits.tokenizer_size = limits.vocab_size;
  const std::string path = folder().write("task.jsonl", bytes.rest());
  const data::Task task = data::read_task("task", path, limits);
  demand(!task.questions.empty(), "a task has questions");
  demand(task.most_inputs() <= limits.seq_length, "every choice fits into a sequence");
  for (const data::Question& question : task.questions) {
    demand(!question.context.empty(), "a context has tokens");
    demand(question.choices.size() >= 2, "there is a choice");
    demand(question.answer < question.choices.size(), "the answer is one of them");
    for (const data::Choice& choice : question.choices) {
      demand(!choice.tokens.empty() && choice.bytes > 0, "a choice has tokens and bytes");
      for (const std::int32_t id : choice.tokens) {
        demand(id >= 0 && id < limits.vocab_size, "ids are in the vocabulary");
      }
    }
    data::verdict_of(question, std::vector<double>(question.choices.size(), -1.0));
  }
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use({data, size}); });
  return 0;
}
