// A Hugging Face folder's config.json, header and index: read, or refused in one sentence.
#include "checkpoint/interchange/safetensors_folder.h"
#include "engine/huggingface/config.h"
#include "engine/huggingface/config_writer.h"
#include "engine/recipe/model_from.h"
#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {
namespace {

void use_config(const std::string& text) {
  const huggingface::ModelConfig config = huggingface::parse_config(text, "config.json");
  const auto values = engine::model_values(config);
  // What an export makes of it means the same.
  const std::string written = huggingface::updated_config(text, "config.json", DType::kBF16);
  demand(engine::model_values(huggingface::parse_config(written, "written.json")) == values,
         "a written config.json means the same model");
}

void use_index(const std::string& text) {
  folder().write("model.safetensors.index.json", text);
  checkpoint::SafetensorsFolder(checkpoint::posix_disk(), folder().path());
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sherd;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzz::expect_answer([&] {
    if (data[0] % 3 == 0) return fuzz::use_config(text);
    if (data[0] % 3 == 1) return fuzz::use_index(text);
    checkpoint::parse_safetensors_header(text, data[0] / 3, "x.safetensors");
  });
  return 0;
}
