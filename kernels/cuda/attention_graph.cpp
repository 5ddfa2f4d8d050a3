// B sequences, H query heads, G key/value heads, K head width. q, k and v are strided
// views of the packed qkv, so nothing is copied. Values may be narrower than their heads.
#include "kernels/cuda/attention_graph.h"

#include <cudnn_frontend.h>

#include <algorithm>

namespace sherd::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;

void check_graph(const AttentionGraphKey& key, cudnn_frontend::error_t status) {
  if (status.is_bad()) refuse_attention(key, status.get_message());
}

using Handle = std::shared_ptr<graph::Tensor_attributes>;

// [B, heads, rows, width] inside of wider rows.
graph::Tensor_attributes heads(const char* name, AttentionUid uid, const AttentionShape& s,
                               const device_common::HeadRows& rows) {
  return graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.sequences, rows.heads, rows.rows, rows.width})
      .set_stride({rows.sequence, s.head_width, rows.row, 1});
}

void place(const Handle& tensor, const graph::Tensor_attributes& like) {
  tensor->set_output(true)
      .set_uid(like.get_uid())
      .set_dim(like.get_dim())
      .set_stride(like.get_stride());
}

graph::Tensor_attributes lse_of(const AttentionShape& s, const device_common::HeadRows& rows) {
  return graph::Tensor_attributes()
      .set_name("lse")
      .set_uid(kLse)
      .set_dim({s.sequences, rows.heads, rows.rows, 1})
      .set_stride({rows.sequence, rows.rows, rows.row, 1})
      .set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

// One 64-bit number in device memory.
Handle number(graph::Graph& graph, const char* name, AttentionUid uid) {
  return graph.tensor(graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(uid)
                          .set_dim({1, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(cudnn_frontend::DataType_t::INT64));
}

template <class Attributes>
void describe_common(const AttentionGraphKey& key, graph::Graph& graph, Attributes& attributes) {
  attributes.set_causal_mask(key.views().causal).set_attn_scale(key.shape.score_scale());
  if (key.dropout > 0.0f) {
    attributes.set_dropout(key.dropout, number(graph, "seed", kSeed),
                           number(graph, "offset", kOffset));
  }
}

void describe_forward(const AttentionGraphKey& key, graph::Graph& graph, const Handle& q,
                      const Handle& k, const Handle& v) {
  const AttentionShape& s = key.shape;
  const device_common::AttentionViews views = key.views();
  graph::SDPA_attributes attributes;
  attributes.set_name("attention").set_generate_stats(true);
  describe_common(key, graph, attributes);
  auto [out, lse] = graph.sdpa(q, k, v, attributes);
  place(out, heads("out", kOut, s, views.out_written));
  place(lse, lse_of(s, views.lse));
  lse->set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

void describe_backward(const AttentionGraphKey& key, graph::Graph& graph, const Handle& q,
                       const Handle& k, const Handle& v) {
  const AttentionShape& s = key.shape;
  const device_common::AttentionViews views = key.views();
  const Handle out = graph.tensor(heads("out", kOut, s, views.out));
  const Handle dout = graph.tensor(heads("dout", kDout, s, views.dout));
  const Handle lse = graph.tensor(lse_of(s, views.lse));
  graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_deterministic_algorithm(key.deterministic);
  describe_common(key, graph, attributes);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, lse, attributes);
  place(dq, heads("dq", kDq, s, views.dq));
  place(dk, heads("dk", kDk, s, views.dk));
  place(dv, heads("dv", kDv, s, views.dv));
}

void describe(const AttentionGraphKey& key, graph::Graph& graph) {
  const auto type = key.dtype == DType::kBF16 ? cudnn_frontend::DataType_t::BFLOAT16
                                              : cudnn_frontend::DataType_t::HALF;
  graph.set_io_data_type(type)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  const AttentionShape& s = key.shape;
  const device_common::AttentionViews views = key.views();
  const Handle q = graph.tensor(heads("q", kQ, s, views.q));
  const Handle k = graph.tensor(heads("k", kK, s, views.k));
  const Handle v = graph.tensor(heads("v", kV, s, views.v));
  key.backward ? describe_backward(key, graph, q, k, v) : describe_forward(key, graph, q, k, v);
}

void choose_plan(const AttentionGraphKey& key, graph::Graph& graph, cudnnHandle_t handle) {
  check_graph(key, graph.validate());
  check_graph(key, graph.build_operation_graph(handle));
  check_graph(key, graph.create_execution_plans({cudnn_frontend::HeurMode_t::A}));
  graph.deselect_workspace_greater_than(key.scratch_bytes);
  check_graph(key, graph.check_support());
}

class PlannedGraph final : public AttentionGraph {
 public:
  explicit PlannedGraph(const AttentionGraphKey& key) : key_(key) { describe(key, graph_); }
  graph::Graph& graph() { return graph_; }
  void execute(cudnnHandle_t handle, AttentionPointers& pointers, void* scratch) const override {
    const auto status = graph_.execute(handle, pointers, scratch);
    if (status.is_bad()) {
      throw TrainingError("{} failed: {}", key_.text(),
                          cudnn_frontend::error_t(status).get_message());
    }
  }

 private:
  AttentionGraphKey key_;
  graph::Graph graph_;
};

}  // namespace

std::string AttentionGraphKey::text() const {
  return fmt::format(
      "attention {} of {} on {} x {} tokens{}{}, {} query and {} key/value heads of width "
      "{}{}{}{}, "
      "in {} bytes of scratch",
      backward ? "backward" : "forward", name_of(dtype), shape.sequences, shape.num_keys(),
      shape.block ? fmt::format(" in rows of {}", shape.block.rows) : "",
      views().causal ? "" : ", all seen", shape.query_heads, shape.kv_heads, shape.head_width,
      views().v.width < shape.head_width ? fmt::format(" (values {})", views().v.width) : "",
      deterministic ? ", deterministic" : "",
      dropout > 0.0f ? fmt::format(", dropout {}", dropout) : "", scratch_bytes);
}

void refuse_attention(const AttentionGraphKey& key, std::string reason) {
  std::replace(reason.begin(), reason.end(), '\n', ' ');  // an error is one line
  throw UsageError(
      "cuDNN {} has no plan for {}: {}. Choose heads of a width that is a multiple of 8, up to 128 "
      "(256 on Hopper), run.deterministic: false if scratch is short, or run.device: cpu",
      cudnnGetVersion(), key.text(), reason);
}

std::unique_ptr<AttentionGraph> build_attention_graph(const AttentionGraphKey& key,
                                                      cudnnHandle_t handle) {
  auto planned = std::make_unique<PlannedGraph>(key);
  graph::Graph& graph = planned->graph();
  choose_plan(key, graph, handle);
  check_graph(key, graph.build_plans());
  // The plan's own and what the frontend puts beside it.
  std::int64_t bytes = 0;
  check_graph(key, graph.get_workspace_size(bytes));
  if (bytes > key.scratch_bytes) {
    refuse_attention(key, fmt::format("its plan wants {} bytes", bytes));
  }
  return planned;
}

void check_attention_graph(const AttentionGraphKey& key,
                           std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper) {
  graph::Graph graph;
  // Before the nodes are made: they copy it.
  graph.set_device_properties(std::move(hopper)).set_sm_version(90);
  describe(key, graph);
  choose_plan(key, graph, nullptr);
}

}  // namespace sherd::kernels::cuda
