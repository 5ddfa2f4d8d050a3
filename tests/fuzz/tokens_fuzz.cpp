// A file of text or token ids in each format, cut into batches, and its ids as text again.
#include <vector>

#include "engine/data/batcher.h"
#include "engine/data/dataset.h"
#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {
namespace {

// Format, vocabulary, window and split come first; what is left is the file.
void use(Bytes bytes) {
  data::DataOptions options;
  options.format = static_cast<data::Format>(bytes.below(3));
  options.vocab_size = static_cast<std::int64_t>(1 + bytes.below(65'536));
  options.seq_length = 1 + bytes.byte() % 40;
  options.validation_fraction = bytes.byte() % 10 / 10.0;
  options.path = folder().write("tokens", bytes.rest());
  const auto dataset = data::open_dataset(options);

  const data::Batcher batcher(
      dataset, {.seq_length = options.seq_length, .micro_batch_size = 2, .world = 2, .seed = 1});
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(2 * options.seq_length));
  std::vector<std::int32_t> targets(inputs.size());
  const auto tensor = [](std::vector<std::int32_t>& ids) {
    return Tensor{ids.data(), DType::kI32, std::ssize(ids)};
  };
  for (std::int64_t step = 0; step < 3; ++step) {
    batcher.fill(step, 0, static_cast<int>(step % 2), {tensor(inputs), tensor(targets)});
    for (const std::int32_t id : inputs) {
      demand(id >= 0 && id < dataset->vocab_size(), "ids are in the vocabulary");
    }
  }
  const std::string text = dataset->text().text(inputs);
  expect_answer([&] { dataset->text().ids(text); });
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use({data, size}); });
  return 0;
}
