#include "checkpoint/interchange/safetensors_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/interchange/safetensors.h"

namespace sherd::checkpoint {
namespace {

std::vector<std::vector<int>> into_files(const std::vector<TensorToWrite>& tensors,
                                         std::int64_t element_bytes, std::int64_t shard_bytes) {
  std::vector<std::vector<int>> files(1);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t of_tensor = tensors[i].numel() * element_bytes;
    if (!files.back().empty() && bytes + of_tensor > shard_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(static_cast<int>(i));
    bytes += of_tensor;
  }
  return files;
}

SafetensorsPlan::File plan_file(const std::vector<TensorToWrite>& tensors, std::vector<int> numbers,
                                DType dtype) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(dtype));
  const auto tensor_of = [&](int number) -> const TensorToWrite& {
    return tensors[static_cast<std::size_t>(number)];
  };
  std::sort(numbers.begin(), numbers.end(),
            [&](int a, int b) { return tensor_of(a).name < tensor_of(b).name; });
  SafetensorsPlan::File file;
  file.tensors = std::move(numbers);
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::int64_t at = 0;
  for (const int number : file.tensors) {
    const TensorToWrite& tensor = tensor_of(number);
    const std::int64_t end = at + tensor.numel() * element_bytes;
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":{}}})",
                        nlohmann::json(tensor.name).dump(), safetensors_type(dtype),
                        nlohmann::json(tensor.shape).dump(),
                        nlohmann::json(std::array{at, end}).dump());
    file.offsets.push_back(at);
    at = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  for (std::size_t length = json.size(), i = 0; i < 8; ++i, length >>= 8) {
    file.header += static_cast<char>(length & 0xff);
  }
  file.header += json;
  for (std::int64_t& offset : file.offsets) offset += std::ssize(file.header);
  file.bytes = at + std::ssize(file.header);
  return file;
}

}  // namespace

std::int64_t TensorToWrite::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

SafetensorsPlan plan_safetensors(const std::vector<TensorToWrite>& tensors, DType dtype,
                                 std::int64_t shard_bytes, const std::string& name) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(dtype));
  SafetensorsPlan plan;
  const auto files = into_files(tensors, element_bytes, shard_bytes);
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::int64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    plan.files.push_back(plan_file(tensors, files[i], dtype));
    plan.files.back().name =
        files.size() == 1 ? name + ".safetensors"
                          : fmt::format("{}-{:05}-of-{:05}.safetensors", name, i + 1, files.size());
    for (const int number : files[i]) {
      const TensorToWrite& tensor = tensors[static_cast<std::size_t>(number)];
      // Not map[name], which looks through all that are there.
      map.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor.name,
                                                                    plan.files.back().name);
      total += tensor.numel() * element_bytes;
    }
  }
  if (files.size() == 1) return plan;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                        {"weight_map", std::move(map)}};
  plan.index = index.dump(2) + "\n";
  return plan;
}

}  // namespace sherd::checkpoint
