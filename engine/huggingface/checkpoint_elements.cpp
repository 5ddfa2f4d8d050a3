#include "engine/huggingface/checkpoint_elements.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "checkpoint/store/block_reader.h"
#include "core/error.h"

namespace sherd::huggingface {
namespace {

using checkpoint::BlockReader;
using checkpoint::Checkpoint;
using checkpoint::StoredRun;

class ParameterReader {
 public:
  ParameterReader(const Checkpoint& checkpoint, const std::vector<NamedShape>& parameters,
                  int num_readers)
      : elements_(checkpoint.manifest()),
        bytes_(std::max(in_order_buffer_bytes(checkpoint.manifest()) / num_readers,
                        16 * checkpoint::kBlockBytes)),
        memory_(std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(bytes_))),
        reader_(checkpoint, {memory_.get(), DType::kU8, bytes_}) {
    const auto& tensors = checkpoint.manifest().tensors;
    for (const NamedShape& parameter : parameters) {
      const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return tensor.kind == "param" && tensor.name == parameter.name;
      });
      SHERD_CHECK(
          found != tensors.end() && found->shape == parameter.shape && found->dtype == DType::kF32,
          "{} isn't the checkpoint's", parameter.name);
      numbers_.push_back(static_cast<int>(found - tensors.begin()));
    }
  }

  void read(int parameter, std::int64_t first, std::int64_t count, float* to) {
    const int number = numbers_[static_cast<std::size_t>(parameter)];
    elements_.visit(number, {}, first, count, [&](const StoredRun& run) {
      reader_.each(run, [&](std::string_view bytes) {
        std::memcpy(to, bytes.data(), bytes.size());
        to += bytes.size() / sizeof(float);
      });
    });
  }

 private:
  checkpoint::StoredElements elements_;
  std::int64_t bytes_;
  std::unique_ptr<char[]> memory_;
  BlockReader reader_;
  std::vector<int> numbers_;
};

}  // namespace

ReadElements elements_of_checkpoint(const Checkpoint& checkpoint,
                                    const std::vector<NamedShape>& parameters, int num_readers) {
  const auto reader = std::make_shared<ParameterReader>(checkpoint, parameters, num_readers);
  return [reader](int parameter, std::int64_t first, std::int64_t count, float* to) {
    reader->read(parameter, first, count, to);
  };
}

}  // namespace sherd::huggingface
