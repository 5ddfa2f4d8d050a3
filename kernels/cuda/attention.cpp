// Causal attention through cuDNN's graph API, in its C++ frontend; what it refuses goes to our own
// kernels (attention_tiles.h). One graph for each shape, type, direction and scratch size, built
// once per thread and device; the plan is the first of cuDNN's heuristics that fits into the
// scratch, never the result of timing.
//
// Scratch: the two words of the dropout, then cuDNN's own.
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
#include "kernels/body/attention.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;

enum Uid : std::int64_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kSeed, kOffset };

struct GraphKey {
  AttentionShape shape;
  DType dtype = DType::kBF16;
  bool backward = false, deterministic = true;
  float dropout = 0.0f;
  std::int64_t scratch_bytes = 0;

  auto tied() const {
    return std::tie(shape.sequences, shape.positions, shape.query_heads, shape.kv_heads,
                    shape.head_width, dtype, backward, deterministic, dropout, scratch_bytes);
  }
  bool operator<(const GraphKey& other) const { return tied() < other.tied(); }

  std::string text() const {
    return fmt::format(
        "attention {} of {} on {} x {} tokens, {} query and {} key/value heads of width {}{}{}, in "
        "{} bytes of scratch",
        backward ? "backward" : "forward", name_of(dtype), shape.sequences, shape.positions,
        shape.query_heads, shape.kv_heads, shape.head_width, deterministic ? ", deterministic" : "",
        dropout > 0.0f ? fmt::format(", dropout {}", dropout) : "", scratch_bytes);
  }
};

[[noreturn]] void refuse(const GraphKey& key, std::string reason) {
  std::replace(reason.begin(), reason.end(), '\n', ' ');  // an error is one line
  throw UsageError(
      "cuDNN {} has no plan for {}: {}. Choose heads of a width that is a multiple of 8, up to 128 "
      "(256 on Hopper), run.deterministic: false if scratch is short, or run.device: cpu",
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

// One 64-bit number in device memory.
Handle number(graph::Graph& graph, const char* name, Uid uid) {
  return graph.tensor(graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(uid)
                          .set_dim({1, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(cudnn_frontend::DataType_t::INT64));
}

template <class Attributes>
void describe_common(const GraphKey& key, graph::Graph& graph, Attributes& attributes) {
  attributes.set_causal_mask(true).set_attn_scale(
      1.0f / std::sqrt(static_cast<float>(key.shape.head_width)));
  if (key.dropout > 0.0f) {
    attributes.set_dropout(key.dropout, number(graph, "seed", kSeed),
                           number(graph, "offset", kOffset));
  }
}

void describe_forward(const GraphKey& key, graph::Graph& graph, const Handle& q, const Handle& k,
                      const Handle& v) {
  const AttentionShape& s = key.shape;
  graph::SDPA_attributes attributes;
  attributes.set_name("attention").set_generate_stats(true);
  describe_common(key, graph, attributes);
  auto [out, lse] = graph.sdpa(q, k, v, attributes);
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
  graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_deterministic_algorithm(key.deterministic);
  describe_common(key, graph, attributes);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, lse, attributes);
  place(dq, heads("dq", kDq, s, s.query_heads, s.packed_width()));
  place(dk, heads("dk", kDk, s, s.kv_heads, s.packed_width()));
  place(dv, heads("dv", kDv, s, s.kv_heads, s.packed_width()));
}

std::unique_ptr<graph::Graph> build(const GraphKey& key, cudnnHandle_t handle) {
  auto built = std::make_unique<graph::Graph>();
  graph::Graph& graph = *built;
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
  graph.deselect_workspace_greater_than(key.scratch_bytes);
  check_graph(key, graph.check_support());
  check_graph(key, graph.build_plans());
  // The plan's own and what the frontend puts beside it.
  std::int64_t bytes = 0;
  check_graph(key, graph.get_workspace_size(bytes));
  if (bytes > key.scratch_bytes) refuse(key, fmt::format("its plan wants {} bytes", bytes));
  return built;
}

const graph::Graph& planned(const GraphKey& key, int device, cudnnHandle_t handle) {
  thread_local std::map<std::pair<int, GraphKey>, std::unique_ptr<graph::Graph>> graphs;
  std::unique_ptr<graph::Graph>& graph = graphs[{device, key}];
  if (!graph) graph = build(key, handle);
  return *graph;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

// Keys and values begin inside a row of qkv: their places are multiples of 16 bytes if its own is.
void check_alignment(const Pointers& pointers) {
  for (const auto& [uid, pointer] : pointers) {
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0, "attention: tensor {} at {}", uid,
          pointer);
  }
}

void execute(Stream& stream, GraphKey key, const Dropout& dropout, Pointers pointers,
             const Tensor& workspace) {
  check_alignment(pointers);
  CudaStream& cuda = cuda_stream(stream);
  key.deterministic = cuda.cuda().deterministic;
  key.dropout = dropout.active() ? dropout.probability : 0.0f;
  const std::int64_t needed =
      body::attention_workspace_bytes(key.shape, key.dtype, key.deterministic);
  CHECK(workspace.bytes() >= needed, "attention: a workspace of {} bytes, {} needed",
        workspace.bytes(), needed);
  key.scratch_bytes = needed - body::kAttentionSeedBytes;
  auto* seed = static_cast<std::int64_t*>(workspace.data);
  if (dropout.active()) {
    set_pair(stream, seed, body::cudnn_dropout_seed(dropout), 0);
    pointers[kSeed] = seed;
    pointers[kOffset] = seed + 1;
  }
  const cudnnHandle_t handle = handle_of(cuda);
  const graph::Graph& graph = planned(key, cuda.cuda().device, handle);
  void* scratch = static_cast<char*>(workspace.data) + body::kAttentionSeedBytes;
  check_graph(key, graph.execute(handle, pointers, scratch));
}

bool is_ours(const AttentionShape& shape, DType dtype) {
  return body::attention_form(shape, dtype) == body::AttentionForm::kOwn;
}

void* at(const ConstTensor& tensor, std::int64_t element) {
  const auto offset = element * static_cast<std::int64_t>(size_of(tensor.dtype));
  return static_cast<char*>(const_cast<void*>(tensor.data)) + offset;
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const DType dtype = args.qkv.dtype;
  if (is_ours(args.shape, dtype)) return attention_tiles_forward(stream, args);
  const body::AttentionLayout layout(args.shape);
  execute(stream, {args.shape, dtype, false}, args.dropout,
          {{kQ, at(args.qkv, 0)},
           {kK, at(args.qkv, layout.key(0, 0))},
           {kV, at(args.qkv, layout.value(0, 0))},
           {kOut, args.out.data},
           {kLse, args.lse.data}},
          args.workspace);
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const DType dtype = args.qkv.dtype;
  if (is_ours(args.shape, dtype)) return attention_tiles_backward(stream, args);
  const body::AttentionLayout layout(args.shape);
  const std::int64_t keys = layout.key(0, 0), values = layout.value(0, 0);
  execute(stream, {args.shape, dtype, true}, args.dropout,
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
