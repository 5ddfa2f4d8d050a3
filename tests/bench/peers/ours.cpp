// Sherd's side of `./dev bench peers`: a training that takes one step each time it is asked to, so
// that it and PyTorch can take turns on a machine whose load changes.
//
//   sherd_peers describe RECIPE [KEY=VALUE...]       the model as JSON, for the other side
//   sherd_peers weights RECIPE FILE [KEY=VALUE...]   initial parameters, f32, in the table's order
//   sherd_peers batches RECIPE FILE STEPS [KEY=VALUE...]   what the recipe's data are: i32 [steps,
//                                                    global batch, {inputs, targets, positions}, S]
//   sherd_peers train RECIPE TOKENS [KEY=VALUE...]   "step" on stdin takes a step, answered in JSON
//   sherd_peers loops RECIPE TOKENS FILE [KEY=VALUE...]   the same; FILE gets the loops of rank 0's threads in
//                                                    the step, for ./dev bench threads
//   sherd_peers tasks RECIPE TOKENS FILE [KEY=VALUE...]   the same, of a team that runs tasks one by one
//   sherd_peers rate THREADS f32|bf16                of the tiles that multiply this type, in the first cache: GFLOP/s
//   sherd_peers gpu_rate                             the GPU's, in bf16
//
// TOKENS: i32 [steps, global batch, S + 1]; rank r takes its micro-batch's rows.

#include <fmt/format.h>

#include <time.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/arena.h"
#include "core/loop_log.h"
#include "core/thread_team.h"
#include "engine/data/batcher.h"
#include "engine/launch/device.h"
#include "engine/launch/matmul_rate.h"
#include "engine/launch/system_info.h"
#include "engine/model/parameters.h"
#include "engine/plan/memory_plan.h"
#include "engine/recipe/recipe.h"
#include "engine/train/from_recipe.h"
#include "engine/train/token_feed.h"
#include "engine/train/training_step.h"
#include "kernels/isa.h"

namespace {

using namespace sherd;

// A line of /proc/self/status in bytes: VmHWM is the peak, VmRSS what is resident now.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

template <class Number>
std::vector<Number> read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.empty()) throw DataError("{}: can't be read, or is empty", path);
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  return numbers;
}

void describe(const engine::Recipe& recipe) {
  const engine::TrainingOptions options = engine::options_on_device(recipe);
  const model::ModelShape& shape = options.model;
  const bool cuda = engine::device_traits(recipe).kind == DeviceKind::kCuda;
  nlohmann::ordered_json out = {{"layers", shape.num_layers},
                                {"width", shape.width},
                                {"query_heads", shape.query_heads},
                                {"kv_heads", shape.kv_heads},
                                {"ffn_width", shape.ffn_width},
                                {"vocab_size", shape.vocab_size},
                                {"rmsnorm", shape.norm == kernels::NormKind::kRmsNorm},
                                {"rope", shape.positions == model::Positions::kRope},
                                {"swiglu", shape.gated()},
                                {"bias", shape.biases.qkv},
                                {"tied", shape.tied},
                                {"norm_eps", shape.norm_eps},
                                {"rope_theta", shape.rotary[0].theta},
                                {"sequences", shape.sequences},
                                {"seq_length", shape.seq_length},
                                {"lr", recipe.optimizer.lr},
                                {"betas", {options.optimizer.beta1, options.optimizer.beta2}},
                                {"eps", options.optimizer.eps},
                                {"weight_decay", options.optimizer.decay.rate},
                                {"max_norm", options.max_norm},
                                {"device", cuda ? "cuda" : "cpu"},
                                {"dtype", name_of(shape.dtype)},
                                {"isa", kernels::name_of(kernels::isa())},
                                {"num_parameters", model::num_parameters(shape)},
                                {"flops_per_token", engine::flops_per_token(shape)}};
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      out["parameters"].push_back({parameter.name, parameter.shape});
    }
  }
  fmt::print("{}\n", out.dump());
}

// Processor time of rank 0's own thread in each kernel, by the label under which it ran: the calls
// of the stream's hook come in pairs around the work.
class KernelTimes {
 public:
  BoundaryHook hook() {
    return [this](std::string_view stream, std::string_view label) {
      if (stream != "compute" || std::this_thread::get_id() != thread_) return;
      if (label == "record" || label == "wait") return;
      timespec now{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      const double seconds =
          static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
      if (inside_) seconds_[std::string(label)] += seconds - begin_;
      begin_ = seconds;
      inside_ = !inside_;
    };
  }
  void start() {
    thread_ = std::this_thread::get_id();
    seconds_.clear();
  }
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  std::atomic<std::thread::id> thread_{};
  bool inside_ = false;
  double begin_ = 0.0;
  std::map<std::string, double> seconds_;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// On the recipe's device, with what a training needs there and no more.
engine::LaunchOptions launch_of(const engine::Recipe& recipe,
                                const engine::TrainingOptions& options) {
  engine::LaunchOptions launch = engine::launch_options(recipe, engine::choose_machine(recipe));
  const engine::DeviceTraits device = launch.machine->traits();
  const engine::MemoryRequest request{.mesh = launch.mesh,
                                      .num_threads = launch.compute_threads(),
                                      .device = device.kind,
                                      .deterministic = recipe.run.deterministic,
                                      .separate_memory = device.separate_memory};
  const auto buffers = [&options, request](int r) {
    engine::MemoryRequest of_rank = request;
    of_rank.rank = r;
    auto all = engine::training_buffers(options, of_rank);
    const auto batches = engine::batch_buffers(options);
    all.insert(all.end(), batches.begin(), batches.end());
    return all;
  };
  launch.plan = [=](int r) { return engine::device_plan(buffers(r), request); };
  launch.host_plan = [=](int r) { return engine::host_plan(buffers(r), request); };
  return launch;
}

void write_weights(const engine::Recipe& recipe, const std::string& path) {
  const engine::TrainingOptions options = engine::options_on_device(recipe);
  engine::run_ranks(launch_of(recipe, options), [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    SHERD_CHECK(rank.world_size() == 1, "the weights are written by one rank");
    std::ofstream file(path, std::ios::binary);
    for (const sharding::UnitState& unit : model.units()) {
      for (const Tensor& tensor : unit.layout().views(unit.resident_parameters())) {
        file.write(static_cast<const char*>(tensor.data), tensor.bytes());
      }
    }
  });
}

// Rows in the order of the global batch, by the engine's own batcher.
void write_batches(const engine::Recipe& recipe, const std::string& path, std::int64_t steps) {
  const auto dataset = data::open_dataset(engine::data_options(recipe));
  data::BatchShape shape = engine::batch_shape(recipe);
  shape.num_micro_steps = shape.global_batch_size();
  shape.micro_batch_size = shape.world = shape.num_replicas = 1;
  const data::Batcher batcher(dataset, shape);
  SHERD_CHECK(dataset->separate_documents(), "rows are written of separate documents alone");
  const auto tokens = static_cast<std::size_t>(shape.seq_length);
  std::vector<std::int32_t> row(3 * tokens), starts(tokens + 1), lengths(tokens);
  const auto tensor = [](std::int32_t* ids, std::size_t count) {
    return Tensor{ids, DType::kI32, static_cast<std::int64_t>(count)};
  };
  std::ofstream file(path, std::ios::binary);
  for (std::int64_t i = 0; i < steps * shape.num_micro_steps; ++i) {
    batcher.fill(i / shape.num_micro_steps, i % shape.num_micro_steps, 0,
                 {tensor(row.data(), tokens), tensor(row.data() + tokens, tokens),
                  tensor(starts.data(), tokens + 1), tensor(lengths.data(), tokens),
                  tensor(row.data() + 2 * tokens, tokens)});
    file.write(reinterpret_cast<const char*>(row.data()),
               static_cast<std::streamsize>(row.size() * sizeof(row[0])));
  }
}

// One rank's batches out of the file.
data::FillBatch batches_of(const std::vector<std::int32_t>& file, const model::ModelShape& shape,
                           const sharding::Rank& rank) {
  return [&](std::int64_t step, std::int64_t, const data::Batch& batch) {
    const std::int64_t width = shape.seq_length + 1;
    for (std::int64_t b = 0; b < shape.sequences; ++b) {
      std::int64_t row = (step * rank.world_size() + rank.rank) * shape.sequences + b;
      // Reading ahead goes beyond the last step.
      row %= static_cast<std::int64_t>(file.size()) / width;
      const std::int64_t at = b * shape.seq_length;
      std::copy_n(&file[row * width], shape.seq_length, batch.inputs.as<std::int32_t>() + at);
      std::copy_n(&file[row * width + 1], shape.seq_length, batch.targets.as<std::int32_t>() + at);
    }
  };
}

// Times in microseconds from `begin` on.
void write_loops(const LoopLog& log, Clock::time_point begin, const std::string& path) {
  std::ofstream file(path + ".part", std::ios::trunc);
  const auto us = [&](LoopLog::Time time) {
    return std::chrono::duration<double, std::micro>(time - begin).count();
  };
  for (const LoopLog::Loop& loop : log.loops()) {
    file << fmt::format(R"({{"name":"{}","begin":{:.2f},"end":{:.2f},"tasks":[)", loop.name,
                        us(loop.begin), us(loop.end));
    const char* between = "";
    for (const LoopLog::Task& task : loop.tasks) {
      file << fmt::format("{}[{:.2f},{:.2f},{:.2f},{},{}]", between, us(task.taken), us(task.begin),
                          us(task.end), task.needs, task.thread);
      between = ",";
    }
    file << "]}\n";
  }
  file.close();
  if (!file || std::rename((path + ".part").c_str(), path.c_str()) != 0) {
    throw DataError("{}: can't be written", path);
  }
}

void train(const engine::Recipe& recipe, const std::string& tokens_path,
           const std::string& loops_path = "", bool one_by_one = false) {
  const engine::TrainingOptions options = engine::options_on_device(recipe);
  const std::vector<std::int32_t> tokens = read_all<std::int32_t>(tokens_path);
  const std::int64_t libraries = status_bytes("VmRSS");
  engine::LaunchOptions launch = launch_of(recipe, options);
  KernelTimes kernels;
  LoopLog loops;
  if (!loops_path.empty()) {
    launch.hook = [&](std::string_view stream, std::string_view label) {
      if (stream == "compute" && label != "record" && label != "wait") loops.name(label);
    };
  } else if (launch.machine->traits().kind == DeviceKind::kCpu) {
    launch.hook = kernels.hook();
  }
  std::barrier turn(launch.world_size());
  bool more = true;
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    engine::TokenFeed feed(options, rank, batches_of(tokens, options.model, rank));
    feed.start(0);
    rank.guard([&] {
      for (std::int64_t step = 0;; ++step) {
        std::string line;
        if (rank.rank == 0) more = std::getline(std::cin, line) && line == "step";
        turn.arrive_and_wait();
        if (!more) return;
        if (rank.rank == 0) kernels.start();
        if (!loops_path.empty()) {
          loops.clear();
          rank.compute().team().log_to(&loops, one_by_one);
        }
        const double processor = processor_seconds();
        const auto begin = Clock::now();
        const engine::StepResult result =
            training_step.run(step, [&](auto... at) { return feed.next(at...); });
        rank.compute().synchronize();
        turn.arrive_and_wait();
        const std::chrono::duration<double> seconds = Clock::now() - begin;
        if (rank.rank != 0) continue;
        if (!loops_path.empty()) write_loops(loops, begin, loops_path);
        const nlohmann::ordered_json answer = {
            {"loss", result.loss},
            {"grad_norm", result.grad_norm},
            {"seconds", seconds.count()},
            {"exposed_comm_ms", result.exposed_comm_ms},
            {"processor_seconds", processor_seconds() - processor},
            {"kernels", kernels.seconds()},
            {"libraries", launch.machine->traits().kind == DeviceKind::kCpu ? libraries : 0},
            {"peak", launch.machine->traits().kind == DeviceKind::kCpu
                         ? status_bytes("VmHWM")
                         : static_cast<const Arena&>(*rank.memory).taken_bytes()}};
        fmt::print("{}\n", answer.dump());
        std::fflush(stdout);
      }
    });
  });
}

int run(std::vector<std::string> args) {
  const std::string command = args.empty() ? "" : args[0];
  if (command == "rate" && args.size() == 3) {
    const DType dtype = args[2] == "bf16" ? DType::kBF16 : DType::kF32;
    fmt::print("{:.2f}\n", engine::measure_matmul_peak(dtype, std::stoi(args[1])) * 1e-9);
    return 0;
  }
  if (command == "gpu_rate" && args.size() == 1) {
    fmt::print("{:.2f}\n", engine::measure_matmul_rate_of_gpu(DType::kBF16, {}) * 1e-9);
    return 0;
  }
  const bool logs = command == "loops" || command == "tasks";
  const std::size_t own = command == "describe" ? 2 : command == "batches" || logs ? 4 : 3;
  if (args.size() < own) throw UsageError("sherd_peers: see the head of ours.cpp");
  engine::RecipeRequest request;
  request.path = args[1];
  request.sets.assign(args.begin() + static_cast<std::ptrdiff_t>(own), args.end());
  const engine::ResolvedRecipe resolved = engine::resolve_recipe(request);
  if (command == "describe") {
    describe(resolved.values);
  } else if (command == "weights") {
    write_weights(resolved.values, args[2]);
  } else if (command == "batches") {
    write_batches(resolved.values, args[2], std::stoll(args[3]));
  } else if (logs) {
    if (resolved.values.world_size() != 1) throw UsageError("sherd_peers: loops are of one rank");
    train(resolved.values, args[2], args[3], command == "tasks");
  } else {
    train(resolved.values, args[2]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "sherd_peers: {}\n", error.what());
    return 1;
  }
}
