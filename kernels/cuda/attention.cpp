// Causal attention through cuDNN's graph API, in its C++ frontend. One graph for each shape, type
// and direction, built once per thread and device; a plan is taken from cuDNN's heuristics, never
// from timing.
//
// B sequences, S positions, H query heads, G key/value heads, K head width. q, k and v are strided
// views of the packed qkv, so nothing is copied.
#include "kernels/attention.h"

#include <cudnn.h>
#include <cudnn_frontend.h>

#include <map>
#include <mutex>
#include <tuple>

#include "core/cuda_device.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;

enum Uid : std::int64_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct GraphKey {
  AttentionShape shape;
  DType dtype = DType::kBF16;
  bool backward = false, deterministic = true;

  auto tied() const {
    return std::tie(shape.sequences, shape.positions, shape.query_heads, shape.kv_heads,
                    shape.head_width, dtype, backward, deterministic);
  }
  bool operator<(const GraphKey& other) const { return tied() < other.tied(); }

  std::string text() const {
    return fmt::format(
        "attention {} of {} on {} x {} tokens, {} query and {} key/value heads of width {}{}",
        backward ? "backward" : "forward", name_of(dtype), shape.sequences, shape.positions,
        shape.query_heads, shape.kv_heads, shape.head_width,
        deterministic ? ", deterministic" : "");
  }
};

[[noreturn]] void refuse(const GraphKey& key, const std::string& reason) {
  throw UsageError(
      "cuDNN {} has no plan for {}: {}. Choose bf16 or f16 in mixed_precision.param_dtype and "
      "heads "
      "of a width that is a multiple of 8, up to 128, or run.device: cpu",
      cudnnGetVersion(), key.text(), reason);
}

void check_graph(const GraphKey& key, cudnn_frontend::error_t status) {
  if (status.is_bad()) refuse(key, status.get_message());
}

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw TrainingError("{} failed: {}", call, cudnnGetErrorString(status));
  }
}

// One per thread and device: a handle carries the stream of the next call.
cudnnHandle_t handle_of(const CudaStream& stream) {
  thread_local std::map<int, cudnnHandle_t> handles;
  cudnnHandle_t& handle = handles[stream.cuda().device];
  if (!handle) check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  check_cudnn(cudnnSetStream(handle, stream.handle()), "cudnnSetStream");
  return handle;
}

using Handle = std::shared_ptr<graph::Tensor_attributes>;

// [B, heads, S, K] inside rows of `row` elements.
graph::Tensor_attributes heads(const char* name, Uid uid, const AttentionShape& s,
                               std::int64_t num_heads, std::int64_t row) {
  return graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.sequences, num_heads, s.positions, s.head_width})
      .set_stride({s.positions * row, s.head_width, row, 1});
}

void place(const Handle& tensor, const graph::Tensor_attributes& like) {
  tensor->set_output(true)
      .set_uid(like.get_uid())
      .set_dim(like.get_dim())
      .set_stride(like.get_stride());
}

graph::Tensor_attributes lse_of(const AttentionShape& s) {
  return graph::Tensor_attributes()
      .set_name("lse")
      .set_uid(kLse)
      .set_dim({s.sequences, s.query_heads, s.positions, 1})
      .set_stride({s.query_heads * s.positions, s.positions, 1, 1})
      .set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

struct Plan {
  graph::Graph graph;
  std::int64_t workspace_bytes = 0;
};

void describe_forward(const GraphKey& key, graph::Graph& graph, const Handle& q, const Handle& k,
                      const Handle& v) {
  const AttentionShape& s = key.shape;
  auto [out, lse] =
      graph.sdpa(q, k, v,
                 graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_causal_mask(true)
                     .set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.head_width))));
  place(out, heads("out", kOut, s, s.query_heads, s.query_heads * s.head_width));
  place(lse, lse_of(s));
  lse->set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

void describe_backward(const GraphKey& key, graph::Graph& graph, const Handle& q, const Handle& k,
                       const Handle& v) {
  const AttentionShape& s = key.shape;
  const std::int64_t row = s.query_heads * s.head_width;
  const Handle out = graph.tensor(heads("out", kOut, s, s.query_heads, row));
  const Handle dout = graph.tensor(heads("dout", kDout, s, s.query_heads, row));
  const Handle lse = graph.tensor(lse_of(s));
  auto [dq, dk, dv] =
      graph.sdpa_backward(q, k, v, out, dout, lse,
                          graph::SDPA_backward_attributes()
                              .set_name("attention_backward")
                              .set_causal_mask(true)
                              .set_deterministic_algorithm(key.deterministic)
                              .set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.head_width))));
  place(dq, heads("dq", kDq, s, s.query_heads, s.packed_width()));
  place(dk, heads("dk", kDk, s, s.kv_heads, s.packed_width()));
  place(dv, heads("dv", kDv, s, s.kv_heads, s.packed_width()));
}

std::unique_ptr<Plan> build(const GraphKey& key, cudnnHandle_t handle) {
  if (key.dtype == DType::kF32) refuse(key, "its attention takes 16-bit elements only");
  auto plan = std::make_unique<Plan>();
  graph::Graph& graph = plan->graph;
  const auto type = key.dtype == DType::kBF16 ? cudnn_frontend::DataType_t::BFLOAT16
                                              : cudnn_frontend::DataType_t::HALF;
  graph.set_io_data_type(type)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  const AttentionShape& s = key.shape;
  const Handle q = graph.tensor(heads("q", kQ, s, s.query_heads, s.packed_width()));
  const Handle k = graph.tensor(heads("k", kK, s, s.kv_heads, s.packed_width()));
  const Handle v = graph.tensor(heads("v", kV, s, s.kv_heads, s.packed_width()));
  key.backward ? describe_backward(key, graph, q, k, v) : describe_forward(key, graph, q, k, v);
  check_graph(key, graph.validate());
  check_graph(key, graph.build_operation_graph(handle));
  check_graph(key, graph.create_execution_plans({cudnn_frontend::HeurMode_t::A}));
  check_graph(key, graph.check_support());
  check_graph(key, graph.build_plans());
  check_graph(key, graph.get_workspace_size(plan->workspace_bytes));
  return plan;
}

const Plan& planned(const GraphKey& key, int device, cudnnHandle_t handle) {
  thread_local std::map<std::pair<int, GraphKey>, std::unique_ptr<Plan>> plans;
  std::unique_ptr<Plan>& plan = plans[{device, key}];
  if (!plan) plan = build(key, handle);
  return *plan;
}

void check_dropout(const Dropout& dropout) {
  if (!dropout.active()) return;
  throw UsageError(
      "attention with dropout {} isn't computed on GPUs yet; set model.dropout: 0, or run.device: "
      "cpu",
      dropout.probability);
}

using Pointers = std::unordered_map<std::int64_t, void*>;

void execute(Stream& stream, const GraphKey& key, Pointers pointers, const Tensor& workspace) {
  const CudaStream& cuda = cuda_stream(stream);
  const cudnnHandle_t handle = handle_of(cuda);
  const Plan& plan = planned(key, cuda.cuda().device, handle);
  CHECK(workspace.bytes() >= plan.workspace_bytes, "{}: a workspace of {} bytes, {} needed",
        key.text(), workspace.bytes(), plan.workspace_bytes);
  check_graph(key, plan.graph.execute(handle, pointers, workspace.data));
}

GraphKey key_of(Stream& stream, const AttentionShape& shape, DType dtype, bool backward) {
  return {shape, dtype, backward, cuda_stream(stream).cuda().deterministic};
}

void* at(const ConstTensor& tensor, std::int64_t element) {
  const auto offset = element * static_cast<std::int64_t>(size_of(tensor.dtype));
  return static_cast<char*>(const_cast<void*>(tensor.data)) + offset;
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  check_dropout(args.dropout);
  const AttentionShape& s = args.shape;
  const std::int64_t keys = s.query_heads * s.head_width, values = keys + s.kv_heads * s.head_width;
  execute(stream, key_of(stream, s, args.qkv.dtype, false),
          {{kQ, at(args.qkv, 0)},
           {kK, at(args.qkv, keys)},
           {kV, at(args.qkv, values)},
           {kOut, args.out.data},
           {kLse, args.lse.data}},
          args.workspace);
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  check_dropout(args.dropout);
  const AttentionShape& s = args.shape;
  const std::int64_t keys = s.query_heads * s.head_width, values = keys + s.kv_heads * s.head_width;
  execute(stream, key_of(stream, s, args.qkv.dtype, true),
          {{kQ, at(args.qkv, 0)},
           {kK, at(args.qkv, keys)},
           {kV, at(args.qkv, values)},
           {kOut, at(args.out, 0)},
           {kLse, at(args.lse, 0)},
           {kDout, at(args.dout, 0)},
           {kDq, at(args.dqkv, 0)},
           {kDk, at(args.dqkv, keys)},
           {kDv, at(args.dqkv, values)}},
          args.workspace);
}

}  // namespace sherd::kernels::cuda
