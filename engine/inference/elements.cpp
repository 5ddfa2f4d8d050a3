#include "engine/inference/elements.h"

#include <algorithm>
#include <memory>

#include "engine/huggingface/checkpoint_elements.h"

namespace sherd::engine {

using huggingface::NamedShape;
using huggingface::ReadElements;

namespace {

// A folder's reader is made for large ranges. Transposed matrices are asked for in short runs.
class FolderElements {
 public:
  FolderElements(std::shared_ptr<const huggingface::FolderWeights> folder,
                 const std::vector<NamedShape>& parameters)
      : folder_(std::move(folder)),
        parameters_(parameters),
        buffer_(static_cast<std::size_t>(checkpoint::kBlockBytes)) {}

  void read(int parameter, std::int64_t first, std::int64_t count, float* to) {
    const bool is_there =
        parameter == parameter_ && first >= first_ && first + count <= first_ + std::ssize(values_);
    if (!is_there) load(parameter, first, count);
    std::copy_n(values_.begin() + (first - first_), count, to);
  }

 private:
  static constexpr std::int64_t kWhole = std::int64_t{1} << 24, kAtOnce = std::int64_t{1} << 20;

  void load(int parameter, std::int64_t first, std::int64_t count) {
    const NamedShape& ours = parameters_[static_cast<std::size_t>(parameter)];
    const bool is_whole = ours.numel() <= kWhole;
    parameter_ = -1;
    first_ = is_whole ? 0 : first;
    values_.resize(static_cast<std::size_t>(
        is_whole ? ours.numel() : std::max(count, std::min(kAtOnce, ours.numel() - first))));
    folder_->load(
        {{{ours.name, "param", ours.shape, DType::kF32}},
         {{0, first_, std::ssize(values_), {values_.data(), DType::kF32, std::ssize(values_)}}}},
        {buffer_.data(), DType::kU8, std::ssize(buffer_)});
    parameter_ = parameter;
  }

  std::shared_ptr<const huggingface::FolderWeights> folder_;
  std::vector<NamedShape> parameters_;
  std::vector<char> buffer_;
  int parameter_ = -1;  // of values_
  std::int64_t first_ = 0;
  std::vector<float> values_;
};

}  // namespace

std::function<ReadElements()> elements_of(const TrainedModel& trained,
                                          const std::vector<NamedShape>& parameters,
                                          int num_readers) {
  if (trained.checkpoint) {
    return [checkpoint = trained.checkpoint, parameters, num_readers] {
      const auto elements =
          huggingface::elements_of_checkpoint(*checkpoint, parameters, num_readers);
      return ReadElements(
          [checkpoint, elements](int parameter, std::int64_t first, std::int64_t count, float* to) {
            elements(parameter, first, count, to);
          });
    };
  }
  return [folder = trained.folder, parameters] {
    const auto elements = std::make_shared<FolderElements>(folder, parameters);
    return ReadElements([elements](int parameter, std::int64_t first, std::int64_t count,
                                   float* to) { elements->read(parameter, first, count, to); });
  };
}

}  // namespace sherd::engine
