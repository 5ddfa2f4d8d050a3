// E experts, T rows of a launch, D inputs, U outputs.
#include "kernels/cuda/grouped_graph.h"

#include <cudnn_frontend.h>

#include <algorithm>

namespace sherd::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;

enum Uid : std::int64_t { kX, kW, kOffsets, kGroupedOut };

void check_graph(const GroupedKey& key, cudnn_frontend::error_t status) {
  if (status.is_bad()) refuse_grouped(key, status.get_message());
}

void describe(const GroupedKey& key, bool transposed, graph::Graph& graph) {
  const auto type = key.dtype == DType::kBF16 ? cudnn_frontend::DataType_t::BFLOAT16
                                              : cudnn_frontend::DataType_t::HALF;
  graph.set_io_data_type(type)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  const std::int64_t E = key.experts, T = key.rows, D = key.inputs, U = key.outputs;
  const auto tensor = [&](const char* name, Uid uid, std::vector<std::int64_t> dim,
                          std::vector<std::int64_t> stride) {
    return graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim(dim).set_stride(stride);
  };
  const auto x = graph.tensor(tensor("x", kX, {1, T, D}, {T * D, D, 1}));
  // cuDNN multiplies by [E, D, U].
  const auto w = graph.tensor(transposed ? tensor("w", kW, {E, D, U}, {D * U, U, 1})
                                         : tensor("w", kW, {E, D, U}, {D * U, 1, D}));
  const auto offsets = graph.tensor(tensor("offsets", kOffsets, {E, 1, 1}, {1, 1, 1})
                                        .set_data_type(cudnn_frontend::DataType_t::INT32));
  graph::Moe_grouped_matmul_attributes attributes;
  attributes.set_name("experts").set_mode(cudnn_frontend::MoeGroupedMatmulMode_t::NONE);
  const auto out = graph.moe_grouped_matmul(x, w, offsets, nullptr, nullptr, attributes);
  out->set_output(true)
      .set_uid(kGroupedOut)
      .set_dim({1, T, U})
      .set_stride({T * U, U, 1})
      .set_data_type(type);
}

struct Engine {
  std::int64_t id = 0;
  std::unordered_map<cudnn_frontend::KnobType_t, std::int64_t> knobs{};
};

// How a graph is described: for which device, if there is none, and with which weights.
struct Form {
  std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper{};
  bool transposed = false;
};

void begin(const GroupedKey& key, const Form& form, graph::Graph& graph, cudnnHandle_t handle) {
  // Before the nodes are made: they copy it.
  if (form.hopper) graph.set_device_properties(form.hopper).set_sm_version(90);
  describe(key, form.transposed, graph);
  check_graph(key, graph.validate());
  check_graph(key, graph.build_operation_graph(handle));
}

cudnn_frontend::error_t choose(const Engine& engine, graph::Graph& graph) {
  const cudnn_frontend::error_t status = graph.create_execution_plan(engine.id, engine.knobs);
  if (status.is_bad()) return status;
  graph.deselect_workspace_greater_than(kGroupedScratchBytes);
  graph.deselect_numeric_notes({cudnn_frontend::NumericalNote_t::NONDETERMINISTIC});
  return graph.check_support();
}

// The same for every number of rows and of experts.
Engine suggested(const GroupedKey& key, const Form& form, cudnnHandle_t handle) {
  const GroupedKey one{1, kExpertPiece, key.inputs, key.outputs, key.dtype};
  graph::Graph asked;
  begin(one, form, asked, handle);
  check_graph(key, asked.create_execution_plans({cudnn_frontend::HeurMode_t::A}));
  std::string reason = "its heuristics suggest none";
  for (std::int64_t i = 0; i < asked.get_execution_plan_count(); ++i) {
    Engine engine;
    check_graph(key, asked.get_engine_and_knobs_at_index(i, engine.id, engine.knobs));
    graph::Graph tried;
    begin(one, form, tried, handle);
    cudnn_frontend::error_t status = choose(engine, tried);
    if (status.is_good()) return engine;
    reason = status.get_message();
  }
  refuse_grouped(key, reason);
}

void plan(const GroupedKey& key, const Form& form, graph::Graph& graph, cudnnHandle_t handle) {
  const Engine engine = suggested(key, form, handle);
  begin(key, form, graph, handle);
  check_graph(key, choose(engine, graph));
}

class PlannedGraph final : public GroupedGraph {
 public:
  PlannedGraph(const GroupedKey& key, cudnnHandle_t handle) : key_(key) {
    plan(key, {}, graph_, handle);
    check_graph(key, graph_.build_plans());
    std::int64_t bytes = 0;
    check_graph(key, graph_.get_workspace_size(bytes));
    if (bytes > kGroupedScratchBytes) {
      refuse_grouped(key, fmt::format("its plan wants {} bytes", bytes));
    }
  }
  void execute(cudnnHandle_t handle, const GroupedOperands& operands, const std::int32_t* offsets,
               void* scratch) const override {
    std::unordered_map<std::int64_t, void*> pointers{{kX, const_cast<void*>(operands.x)},
                                                     {kW, const_cast<void*>(operands.w)},
                                                     {kOffsets, const_cast<std::int32_t*>(offsets)},
                                                     {kGroupedOut, operands.out}};
    const auto status = graph_.execute(handle, pointers, scratch);
    if (status.is_bad()) {
      throw TrainingError("{} failed: {}", key_.text(),
                          cudnn_frontend::error_t(status).get_message());
    }
  }

 private:
  GroupedKey key_;
  graph::Graph graph_;
};

}  // namespace

void refuse_grouped(const GroupedKey& key, std::string reason) {
  std::replace(reason.begin(), reason.end(), '\n', ' ');  // an error is one line
  throw UsageError(
      "cuDNN {} has no plan for {}: {}. Set moe.grouped_gemm: false, or run.device: cpu",
      cudnnGetVersion(), key.text(), reason);
}

std::unique_ptr<GroupedGraph> build_grouped_graph(const GroupedKey& key, cudnnHandle_t handle) {
  return std::make_unique<PlannedGraph>(key, handle);
}

std::string check_grouped_graph(const GroupedKey& key,
                                std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper,
                                bool transposed) {
  graph::Graph graph;
  plan(key, {std::move(hopper), transposed}, graph, nullptr);
  std::string name;
  check_graph(key, graph.get_plan_name_at_index(0, name));
  return name;
}

}  // namespace sherd::kernels::cuda
