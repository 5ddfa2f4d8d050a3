#include "kernels/cuda/grouped_products.h"

#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/group_offsets.h"

namespace sherd::kernels::cuda {
namespace {

const GroupedGraph& planned(CudnnLibrary& library, const GroupedKey& key) {
  std::unique_ptr<GroupedGraph>& graph = library.grouped[key];
  if (!graph) graph = build_grouped_graph(key, library.handle.get());
  return *graph;
}

}  // namespace

std::string GroupedKey::text() const {
  return fmt::format("grouped products of {}: {} rows of {} experts, {} x {}", name_of(dtype), rows,
                     experts, inputs, outputs);
}

void multiply_grouped_rows(Stream& stream, const GroupedKey& key,
                           const device_common::GroupOffsets& offsets,
                           const GroupedOperands& operands, void* workspace) {
  for (const void* operand : {operands.x, operands.w, static_cast<const void*>(operands.out)}) {
    SHERD_CHECK(reinterpret_cast<std::uintptr_t>(operand) % 16 == 0, "{}: an operand at {}",
                key.text(), operand);
  }
  const CudaStream& cuda = cuda_stream(stream);
  auto* on_device =
      reinterpret_cast<std::int32_t*>(static_cast<char*>(workspace) + kGroupedScratchBytes);
  set_group_offsets(stream, offsets, key.experts, on_device);
  CudnnLibrary& library = cudnn_library(cuda);
  planned(library, key).execute(library.handle.get(), operands, on_device, workspace);
}

}  // namespace sherd::kernels::cuda
