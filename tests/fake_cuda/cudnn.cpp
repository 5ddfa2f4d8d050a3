#include "tests/fake_cuda/cudnn.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <atomic>
#include <memory>

#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/grouped_graph.h"
#include "tests/fake_cuda/attention.h"
#include "tests/fake_cuda/grouped.h"
#include "tests/fake_cuda/scheduler.h"

struct cudnnContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace {

std::atomic<int> num_handles = 0, num_graphs = 0;

}  // namespace

int fake_cuda::cudnn_handles() {
  return num_handles;
}
int fake_cuda::cudnn_graphs() {
  return num_graphs;
}

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  auto made = std::make_unique<cudnnContext>();
  if (cudaGetDevice(&made->device) != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = made.release();
  ++num_handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (stream->device != handle->device) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t) {
  return "fake";
}
std::size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}

}  // extern "C"

namespace sherd::kernels::cuda {
namespace {

class FakeGraph final : public AttentionGraph {
 public:
  explicit FakeGraph(const AttentionGraphKey& key) : key_(key) { ++num_graphs; }
  void execute(cudnnHandle_t handle, AttentionPointers& pointers, void* scratch) const override {
    fake_cuda::launch(handle->stream, attention_of(key_, pointers, scratch));
  }

 private:
  AttentionGraphKey key_;
};

class FakeGroupedGraph final : public GroupedGraph {
 public:
  explicit FakeGroupedGraph(const GroupedKey& key) : key_(key) { ++num_graphs; }
  void execute(cudnnHandle_t handle, const GroupedOperands& operands, const std::int32_t* offsets,
               void* scratch) const override {
    fake_cuda::launch(handle->stream, grouped_of(key_, operands, offsets, scratch));
  }

 private:
  GroupedKey key_;
};

}  // namespace

std::unique_ptr<AttentionGraph> build_attention_graph(const AttentionGraphKey& key, cudnnHandle_t) {
  return std::make_unique<FakeGraph>(key);
}
std::unique_ptr<GroupedGraph> build_grouped_graph(const GroupedKey& key, cudnnHandle_t) {
  return std::make_unique<FakeGroupedGraph>(key);
}

}  // namespace sherd::kernels::cuda
