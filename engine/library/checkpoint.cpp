#include "sherd/checkpoint.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/store/block_reader.h"
#include "engine/library/errors.h"
#include "engine/saving/checkpoint_path.h"

namespace sherd::v0 {
namespace {

checkpoint::Checkpoint opened(const std::string& path) {
  engine::ChosenCheckpoint chosen = engine::choose_checkpoint(path);
  if (chosen.held) return std::move(*chosen.held);
  return {checkpoint::posix_disk(), chosen.path};
}

template <class From, class To>
To* converted(std::string_view bytes, To* to) {
  const std::size_t count = bytes.size() / sizeof(From);
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    if constexpr (std::is_class_v<From>) {
      *to++ = static_cast<To>(static_cast<float>(value));
    } else {
      *to++ = static_cast<To>(value);
    }
  }
  return to;
}

template <class To>
To* converted(DType dtype, std::string_view bytes, To* to) {
  switch (dtype) {
    case DType::kF32:
      return converted<float>(bytes, to);
    case DType::kBF16:
      return converted<BFloat16>(bytes, to);
    case DType::kF16:
      return converted<Float16>(bytes, to);
    case DType::kF64:
      return converted<double>(bytes, to);
    case DType::kI32:
      return converted<std::int32_t>(bytes, to);
    case DType::kU8:
      return converted<std::uint8_t>(bytes, to);
  }
  return to;
}

}  // namespace

struct Checkpoint::Parts {
  explicit Parts(const std::string& path) : stored(opened(path)) {
    for (const sharding::StateTensor& tensor : stored.manifest().tensors) {
      tensors.push_back(
          {tensor.name, tensor.kind, std::string(name_of(tensor.dtype)), tensor.shape});
    }
  }

  std::size_t index_of(const std::string& name, const std::string& kind) const {
    bool has_name = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      has_name |= tensors[i].name == name;
      if (tensors[i].name == name && tensors[i].kind == kind) return i;
    }
    throw sherd::UsageError("{}: has no tensor {} of kind {}{}.", stored.path(), name, kind,
                            has_name ? "; it has it in other kinds" : "");
  }

  template <class To>
  void read(std::size_t index, To* to) const {
    const checkpoint::Manifest& manifest = stored.manifest();
    const DType dtype = manifest.tensors[index].dtype;
    const std::int64_t bytes = checkpoint::in_order_buffer_bytes(manifest);
    const auto memory = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(bytes));
    checkpoint::BlockReader reader(stored, {memory.get(), DType::kU8, bytes});
    checkpoint::StoredElements(manifest).visit(
        static_cast<int>(index), [&](const checkpoint::StoredRun& run) {
          reader.each(run, [&](std::string_view part) { to = converted(dtype, part, to); });
        });
  }

  template <class To>
  std::vector<To> read(const std::string& name, const std::string& kind) const {
    const std::size_t index = index_of(name, kind);
    std::vector<To> values(static_cast<std::size_t>(tensors[index].num_elements()));
    read(index, values.data());
    return values;
  }

  const checkpoint::Checkpoint stored;
  std::vector<TensorInfo> tensors;
};

Checkpoint::Checkpoint(const std::string& path)
    : parts_(library::for_user([&] { return std::make_unique<const Parts>(path); })) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&& other) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept = default;

const std::string& Checkpoint::path() const {
  return parts_->stored.path();
}
std::int64_t Checkpoint::step() const {
  return parts_->stored.manifest().step;
}
const std::vector<TensorInfo>& Checkpoint::tensors() const {
  return parts_->tensors;
}

std::string Checkpoint::json() const {
  return library::for_user([&] { return checkpoint::inspect_json(parts_->stored, false); });
}

std::string Checkpoint::counters_json() const {
  return parts_->stored.manifest().global->dump();
}

std::string Checkpoint::recipe() const {
  const nlohmann::json& global = *parts_->stored.manifest().global;
  const auto found = global.find("recipe");
  return found != global.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<float> Checkpoint::read_floats(const std::string& name, const std::string& kind) const {
  return library::for_user([&] { return parts_->read<float>(name, kind); });
}

std::vector<double> Checkpoint::read_doubles(const std::string& name,
                                             const std::string& kind) const {
  return library::for_user([&] { return parts_->read<double>(name, kind); });
}

void Checkpoint::read_floats(const std::string& name, const std::string& kind, float* to,
                             std::int64_t count) const {
  library::for_user([&] {
    const std::size_t index = parts_->index_of(name, kind);
    if (const std::int64_t elements = parts_->tensors[index].num_elements(); count != elements) {
      throw sherd::UsageError("{}: {} has {} elements, but there is room for {}.", path(), name,
                              elements, count);
    }
    parts_->read(index, to);
  });
}

}  // namespace sherd::v0
