#include "engine/run/run.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "engine/huggingface/model_files.h"
#include "engine/launch/device.h"
#include "engine/launch/process_machine.h"
#include "engine/launch/save_signal.h"
#include "engine/launch/stop_signals.h"
#include "engine/model/parameters.h"
#include "engine/plan/groups_text.h"
#include "engine/plan/memory_report.h"
#include "engine/plan/time/step_comparison.h"
#include "engine/recipe/written_family.h"
#include "engine/report/output_folder.h"
#include "engine/report/progress.h"
#include "engine/report/run_history.h"
#include "engine/run/agreement.h"
#include "engine/run/epochs.h"
#include "engine/run/prepare.h"
#include "engine/run/rank_run.h"
#include "engine/run/rewind.h"
#include "engine/run/run_hooks.h"
#include "engine/run/run_setup.h"
#include "engine/saving/resuming.h"
#include "engine/train/data_sources.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

std::string model_line(const TrainingOptions& options, const Recipe& recipe) {
  const auto millions = [](std::int64_t count) { return static_cast<double>(count) / 1e6; };
  const std::string trained =
      model::has_frozen(options.model)
          ? fmt::format(" ({:.4g} M trained)",
                        millions(model::num_trained_parameters(options.model)))
          : "";
  return fmt::format("{}: {:.2f} M parameters{}, stage {}, {} steps of {} tokens", recipe.run.name,
                     millions(model::num_parameters(options.model)), trained,
                     recipe.zero_optimization.stage, recipe.training.max_steps,
                     options.tokens_per_step(mesh_of(recipe).degree(sharding::data_axes())));
}

// "8 experts, 2 for each token; balance: loss 0.01 by the counts of each micro-batch".
std::string experts_line(const Recipe& recipe) {
  const MoeKeys& moe = recipe.moe;
  constexpr const char* kScopes[] = {"each sequence", "each micro-batch", "the previous step"};
  std::string balance;
  const auto add = [&balance](const std::string& part) {
    balance += (balance.empty() ? "" : ", ") + part;
  };
  if (moe.balance_loss > 0.0) {
    add(fmt::format("loss {:g} by the counts of {}", moe.balance_loss,
                    kScopes[static_cast<std::size_t>(moe.balance_scope)]));
  }
  if (moe.z_loss > 0.0) add(fmt::format("z-loss {:g}", moe.z_loss));
  if (moe.correction_bias) {
    add(moe.bias_update_rate > 0.0 ? fmt::format("bias +-{:g} per step", moe.bias_update_rate)
                                   : std::string("a bias that stays as it is"));
  }
  return fmt::format("{} experts, {} for each token{}; balance: {}", moe.num_experts,
                     moe.experts_per_token,
                     recipe.parallelism.expert_parallel_degree > 1
                         ? fmt::format(", on {} ranks", recipe.parallelism.expert_parallel_degree)
                         : "",
                     balance.empty() ? "none (moe.balance_loss would add a loss)" : balance);
}

// Errors of a wrong request: if a run ends with one before it has begun, nothing is kept.
bool is_refusal(const Error& error) {
  return dynamic_cast<const UsageError*>(&error) || dynamic_cast<const DataError*>(&error) ||
         dynamic_cast<const RefusedElsewhere*>(&error);
}

std::string calls_file(int rank) {
  return fmt::format("collectives_rank_{}.txt", rank);
}

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (const int r : ranks) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", r);
  return names;
}

// Writes the last collectives of each rank to files. Called by the ranks' threads and by the one
// that watches them.
class CallsFiles {
 public:
  explicit CallsFiles(const OutputFolder& output) : output_(output) {}

  void write(int rank, const std::string& calls) {
    std::lock_guard lock(mutex_);
    try {
      output_.replace_own(calls_file(rank), calls);
      ranks_.insert(rank);
    } catch (const std::exception&) {  // the failed rank reports its own error
    }
  }
  // The run did end, so no rank was stuck; it only took longer.
  void forget() {
    for (const int r : ranks_) {
      checkpoint::remove_file(output_.disk(), output_.file(calls_file(r)));
    }
  }

 private:
  const OutputFolder& output_;
  std::mutex mutex_;
  std::set<int> ranks_;
};

// What each process has measured for its ranks. Process 0 gets all of it; the others don't wait.
std::vector<MeasuredMemory> of_all_processes(sharding::Processes* processes, const RanksHere& here,
                                             std::vector<MeasuredMemory> measured,
                                             std::int64_t& resident_bytes) {
  static_assert(std::is_trivially_copyable_v<MeasuredMemory>);
  if (!processes) return measured;
  sharding::ControlLinks& links = processes->links();
  std::string word(reinterpret_cast<const char*>(&resident_bytes), sizeof resident_bytes);
  for (int r = here.first; r < here.first + here.count; ++r) {
    word.append(reinterpret_cast<const char*>(&measured[static_cast<std::size_t>(r)]),
                sizeof(MeasuredMemory));
  }
  if (processes->index() > 0) {
    links.say("measured memory", word);
    return measured;
  }
  std::size_t r = 0;
  resident_bytes = 0;
  for (const std::string& text : links.all_gather("measured memory", word)) {
    std::int64_t bytes = 0;
    std::memcpy(&bytes, text.data(), sizeof bytes);
    resident_bytes += bytes;
    for (int i = 0; i < here.count; ++i, ++r) {
      std::memcpy(&measured[r],
                  text.data() + sizeof bytes + sizeof(MeasuredMemory) * static_cast<std::size_t>(i),
                  sizeof(MeasuredMemory));
    }
  }
  return measured;
}

LaunchOptions launch_of(const PreparedRun& run, std::size_t segment,
                        std::shared_ptr<const Machine> machine, CallsFiles& calls, Trace& trace,
                        checkpoint::Disk& disk, Hooks* hooks, const OnStuck& on_stuck) {
  LaunchOptions launch = planned_launch(run, segment, std::move(machine), disk);
  launch.trace = &trace;
  launch.stop_asked = [] { return stop_request() == StopRequest::kRequeue; };
  launch.on_calls = [&calls](int r, const std::string& text) { calls.write(r, text); };
  if (on_stuck) {
    launch.on_stuck = [&on_stuck, hooks](const std::vector<int>& ranks,
                                         const std::exception_ptr& error) {
      end_hooks(hooks, error);
      on_stuck(names_of(ranks), error);
    };
  }
  return launch;
}

void say_what_runs(Progress& progress, const PreparedRun& run, const LaunchOptions& launch,
                   checkpoint::Disk& disk) {
  const Recipe& recipe = run.resolved.values;
  progress.message(model_line(run.prepared[0].options, recipe));
  if (recipe.moe.num_experts > 0) progress.message(experts_line(recipe));
  if (const std::string text = groups_text(run.prepared[0].options); !text.empty())
    progress.message(text);
  for (const std::string& note : run.resolved.notes) progress.message(note);
  if (const std::string text = export_note(recipe); !text.empty()) progress.message(text);
  if (const std::string text = unlike_folder(disk, recipe); !text.empty()) progress.message(text);
  progress.message(data_lines(recipe, {run.segments, run.batches}));
  if (recipe.training.num_epochs > 0) progress.message(epochs_line(recipe, *run.batches[0]));
  progress.message(device_line(launch));
  if (run.num_segments() > 1) {
    progress.message("the most memory: " + run.segments[run.largest].text(recipe));
  }
  progress.message(memory_table(run.prepared[run.largest].plan));
  if (run.too_large) progress.message("warning: " + *run.too_large);
}

// From now on, signals are requests. With several processes even without checkpoints: after one has
// died, mpirun's SIGTERM must not prevent the others from reporting which.
void listen_to_signals(const Recipe& recipe, bool among_processes) {
  const bool asks = recipe.checkpoint.saves() || among_processes;
  install_stop_handlers(asks ? std::optional(std::chrono::seconds(recipe.checkpoint.stop_deadline))
                             : std::nullopt);
  install_save_signal();
}

// What the ranks of a segment have measured.
struct MeasuredSegment {
  std::size_t segment = 0;
  std::vector<MeasuredMemory> ranks{};
};

// Of runs with stages of other shapes no step is typical.
void report_step_time(const OutputFolder& output, Progress& progress, const Recipe& recipe) {
  if (!recipe.data.stages.empty() || !predicted_step(recipe)) return;
  const auto median_rate = median(read_history(recipe.run.output_dir).tokens_per_s);
  const auto compared = compared_step(recipe, median_rate.value_or(0.0));
  if (!compared) return;
  output.replace("time.json", compared->json());
  progress.message(compared->text());
}

void report_end(const OutputFolder& output, Progress& progress, const PreparedRun& run,
                const MeasuredSegment& measured, std::int64_t resident_bytes, Trace& trace) {
  const WorldPlan& plan = run.prepared[measured.segment].plan;
  output.replace("memory.json", memory_json(plan, measured.ranks, resident_bytes));
  progress.message(memory_comparison(plan, measured.ranks, resident_bytes));
  if (const auto& steps = run.resolved.values.metrics.trace_steps) {
    output.replace("trace.json", trace.to_chrome_json());
    progress.message(fmt::format("trace of steps {} to {}: {}", steps->first, steps->last,
                                 output.file("trace.json")));
  }
}

// All processes take process 0's word.
std::int64_t first_steps(const Recipe& recipe, checkpoint::Disk& disk,
                         sharding::Processes* processes) {
  const std::int64_t steps = probable_steps(recipe, disk);
  if (!processes) return steps;
  return std::stoll(processes->links().all_gather("the segment", std::to_string(steps))[0]);
}

std::vector<std::int64_t> first_steps_of(const std::vector<Segment>& segments) {
  std::vector<std::int64_t> steps;
  for (const Segment& segment : segments) steps.push_back(segment.first_step);
  return steps;
}

// The end of `work` is the hooks' last event, unless it is a refusal.
void with_hooks(Hooks* hooks, const std::atomic<bool>& has_begun,
                const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (has_begun || !is_refusal(error)) end_hooks(hooks, std::current_exception());
    throw;
  } catch (...) {
    end_hooks(hooks, std::current_exception());
    throw;
  }
  end_hooks(hooks, nullptr);
}

// Returns the number of steps from which the run goes on.
std::int64_t go_back(const Rewind& rewind, RunTotals& totals, CheckpointOptions& checkpoints) {
  totals.rewind = rewind.metrics;
  checkpoints.resume = rewind.checkpoint;
  checkpoints.new_skips = rewind.skips;
  return rewind.step;
}

void train_in(const OutputFolder& output, const PreparedRun& run,
              const std::shared_ptr<const Machine>& machine, const OnStuck& on_stuck,
              std::atomic<bool>& has_begun) {
  const Recipe& recipe = run.resolved.values;
  sharding::Processes* const processes = machine->processes();
  const RanksHere here = machine->ranks_here(run.prepared[0].plan.world_size());
  const bool first = here.first == 0;  // of all processes: the one that prints, and writes files
  CheckpointOptions checkpoints = checkpoint_options(run, output);
  if (first) prepare_output(run, output);

  Trace trace;
  CallsFiles calls(output);
  // mpirun gives a process a terminal of its own, and passes on what it reads there line by line.
  Progress progress = processes ? Progress(stdout, /*in_place=*/false, 0) : Progress();
  if (first) {
    prepare_offload(run, output.disk(),
                    [&progress](const std::string& text) { progress.message(text); });
  }
  const std::unique_ptr<Hooks> hooks = first ? run_hooks(recipe, output, progress) : nullptr;
  RunTotals totals;
  MeasuredSegment measured;
  bool said = false;
  // Trains a segment, which is the whole run if there is one.
  const auto train_segment = [&](std::size_t segment) {
    const LaunchOptions launch =
        launch_of(run, segment, machine, calls, trace, output.disk(), hooks.get(), on_stuck);
    if (first && !std::exchange(said, true)) say_what_runs(progress, run, launch, output.disk());
    const RunContext context{
        .run = run,
        .segment = segment,
        .totals = totals,
        .output = output,
        .progress = progress,
        .trace = trace,
        .checkpoints = checkpoints,
        .has_begun = has_begun,
        .hooks = hooks.get(),
        .first_rank = here.first,
        .matmul_peak = machine->matmul_peak(run.prepared[segment].options.model.dtype,
                                            here.count * launch.compute_threads())};
    MeasuredSegment now{segment, std::vector<MeasuredMemory>(launch.world_size())};
    std::optional<Continuation> continuation;
    run_ranks(launch, [&](sharding::Rank& rank) {
      const std::optional<Continuation> of_rank = run_rank(context, rank);
      if (rank.rank == here.first) continuation = of_rank;
      now.ranks[static_cast<std::size_t>(rank.rank)] = measured_memory(rank);
    });
    if (measured.ranks.empty() || segment == run.largest) measured = std::move(now);
    return continuation;
  };
  listen_to_signals(recipe, processes != nullptr);
  with_hooks(hooks.get(), has_begun, [&] {
    try {
      std::int64_t steps_done = 0;
      if (run.num_segments() > 1) steps_done = first_steps(recipe, output.disk(), processes);
      while (const auto next = train_segment(run.segment_after(steps_done))) {
        steps_done = next->steps_done;
        if (next->is_saved) checkpoints.resume = "auto";
        checkpoints.new_skips.clear();
        if (!next->before_bad_steps) continue;
        const Rewind rewind =
            rewind_of(recipe, *next, first_steps_of(run.segments), output.disk(), processes);
        if (first) progress.message(rewind.text);
        if (hooks) hooks->wait_for_saves();
        steps_done = go_back(rewind, totals, checkpoints);
      }
    } catch (const Requeue&) {
      calls.forget();
      throw;
    }
    calls.forget();
    std::int64_t resident_bytes = peak_resident_bytes();
    measured.ranks = of_all_processes(processes, here, std::move(measured.ranks), resident_bytes);
    if (first) report_end(output, progress, run, measured, resident_bytes, trace);
    // Ranks of other processes may be on other machines, whose rates this one doesn't know.
    if (!processes) report_step_time(output, progress, recipe);
  });
}

}  // namespace

void train(const ResolvedRecipe& resolved, const OnStuck& on_stuck) {
  train(resolved, choose_machine(resolved.values), checkpoint::posix_disk(), on_stuck);
}

void train(const ResolvedRecipe& resolved, std::shared_ptr<sharding::Processes> processes,
           const OnStuck& on_stuck) {
  train(resolved, process_machine(std::move(processes), resolved.values), checkpoint::posix_disk(),
        on_stuck);
}

void train(const ResolvedRecipe& written, std::shared_ptr<const Machine> machine,
           checkpoint::Disk& disk, const OnStuck& on_stuck) {
  outlive_lost_output();
  const PreparedRun run = prepare(written, *machine, disk);
  const Recipe& recipe = run.resolved.values;
  sharding::Processes* const processes = machine->processes();
  if (processes)
    require_same(*processes, facts_of_run(recipe, fingerprints_of(recipe, run.batches)));
  const OutputFolder output = shared_output_folder(processes, disk, recipe.run.output_dir);
  std::atomic<bool> has_begun = false;
  try {
    train_in(output, run, machine, on_stuck, has_begun);
  } catch (const Error& error) {
    if (is_refusal(error) && !has_begun) {
      std::vector<std::string> own = huggingface::kept_names();
      own.insert(own.end(), {"checkpoints", "recipe.yaml", "metrics.jsonl", "tensorboard",
                             "reference.safetensors"});
      output.take_back(own);
      if (const auto* failed = dynamic_cast<const checkpoint::DiskError*>(&error)) {
        throw_if_full(recipe.run.output_dir, *failed);
      }
    }
    throw;
  }
}

}  // namespace sherd::engine
