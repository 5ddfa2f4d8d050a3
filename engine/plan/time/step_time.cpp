#include "engine/plan/time/step_time.h"

#include <algorithm>

#include "engine/plan/time/pipeline_time.h"

namespace sherd::engine {
namespace {

LayerTime mixed(const LayerTime& dense, const LayerTime& mixture, double share) {
  const auto mix = [share](double a, double b) { return (1.0 - share) * a + share * b; };
  return {.matmuls_forward = mix(dense.matmuls_forward, mixture.matmuls_forward),
          .matmuls_input = mix(dense.matmuls_input, mixture.matmuls_input),
          .matmuls_weight = mix(dense.matmuls_weight, mixture.matmuls_weight),
          .attention_forward = dense.attention_forward,
          .attention_backward = dense.attention_backward,
          .memory_forward = mix(dense.memory_forward, mixture.memory_forward),
          .memory_backward = mix(dense.memory_backward, mixture.memory_backward),
          .tensor = dense.tensor,
          .context = dense.context,
          .expert = share * mixture.expert,
          .tensor_again = dense.tensor_again,
          .again = mix(dense.again, mixture.again),
          .launches = mix(dense.launches, mixture.launches)};
}

double share_of_mixtures(const ModelSize& model) {
  return static_cast<double>(model.mixtures) / static_cast<double>(model.layers);
}

// Weights on a rank of which `sharers` divide what they all have: of all weights but the experts',
// these are all ranks along the expert axis too.
double weights_of_a_rank(const StepShape& step, std::int64_t sharers) {
  const Layout& layout = step.layout;
  const ModelSize& model = step.model;
  const double experts =
      static_cast<double>(model.mixtures * model.experts) * model.mlp_weights(model.expert_width);
  const std::int64_t of_experts =
      layout.expert * std::max<std::int64_t>(1, sharers / layout.expert);
  return ((model.weights() - experts) / static_cast<double>(sharers) +
          experts / static_cast<double>(of_experts)) /
         static_cast<double>(layout.tensor * layout.pipeline);
}

double layers_of_a_rank(const StepShape& step) {
  return static_cast<double>(step.model.layers) / static_cast<double>(step.layout.pipeline);
}

// How often a step gathers each unit's parameters: ahead of every use, or after an update.
double gathers_of(const Layout& layout) {
  if (layout.shard * layout.context == 1) return 0.0;
  if (layout.stage < 3) return layout.stage == 0 ? 0.0 : 1.0;
  const bool each = layout.pipeline == 1 || layout.reshards;
  const double uses = each ? static_cast<double>(layout.micro_batches) : 1.0;
  return uses * (layout.reshards ? 2.0 : 1.0);
}

}  // namespace

double StepTime::total() const {
  return matmuls + attention + memory + recompute + tensor + context + expert + bubble + messages +
         gathers + reductions + slowed + accumulation + update + disk + host + apart;
}

std::vector<std::pair<std::string, double>> StepTime::parts() const {
  std::vector<std::pair<std::string, double>> all = {{"matmuls", matmuls},
                                                     {"attention", attention},
                                                     {"element-wise kernels", memory},
                                                     {"recompute", recompute},
                                                     {"exchanges of tensor ranks", tensor},
                                                     {"exchanges of context ranks", context},
                                                     {"exchanges of expert ranks", expert},
                                                     {"pipeline bubble", bubble},
                                                     {"pipeline messages", messages},
                                                     {"exposed gathers", gathers},
                                                     {"exposed reductions", reductions},
                                                     {"slowed by overlapped exchanges", slowed},
                                                     {"sums of gradients", accumulation},
                                                     {"exchanges of replicas", apart},
                                                     {"optimizer", update},
                                                     {"disk", disk},
                                                     {"launches", host}};
  std::erase_if(all, [](const auto& part) { return part.second <= 0.0; });
  std::ranges::stable_sort(all, std::greater<>(), [](const auto& part) { return part.second; });
  return all;
}

const LayerTime& StepTimes::known(const StepShape& step, int which) {
  const Layout& layout = step.layout;
  const int form = which + 4 * static_cast<int>(layout.again) +
                   16 * static_cast<int>(layout.context_method) + 64 * layout.sequence_parallel;
  const std::int64_t spread =
      which == 1 ? layout.shard / layout.expert * 4096 + layout.expert : layout.expert;
  const auto [at, is_new] = layers_.try_emplace(
      Key{layout.tensor, layout.context, spread, layout.sequences, form}, LayerTime{});
  if (is_new) at->second = which == 2 ? head(step) : layer(step, which == 1);
  return at->second;
}

// A layer's gather and reduction, each once.
StepTimes::UnitExchanges StepTimes::unit_exchanges(const StepShape& step) const {
  const Layout& layout = step.layout;
  const ModelSize& model = step.model;
  const std::int64_t t = layout.tensor, n = layout.shard * layout.context;
  const double share = share_of_mixtures(model);
  const double dense =
      (model.attention_weights() + (1.0 - share) * model.mlp_weights(model.ffn_width) +
       share * model.mlp_weights(model.shared_width)) /
      static_cast<double>(t);
  const double experts = share * static_cast<double>(model.experts) *
                         model.mlp_weights(model.expert_width) /
                         static_cast<double>(layout.expert * t);
  const auto over_shards = [&](std::string_view collective, double bytes) {
    return exchange(collective, bytes * dense, n, t) +
           (experts > 0.0 ? exchange(collective, bytes * experts, n / layout.expert, t) : 0.0);
  };
  const bool whole = layout.stage == 0;
  const auto parts = [&](std::int64_t ranks) { return whole ? 1.0 : static_cast<double>(ranks); };
  UnitExchanges unit{
      .gather = over_shards("all_gather", step.gather_bytes),
      .reduce = over_shards(whole ? "all_reduce" : "reduce_scatter", step.reduce_bytes)};
  if (step.compression_passes > 0.0) {
    // Each rank of a replica exchanges a share, after whole units have been gathered.
    const double weights = dense + experts, passes = weights * 4.0 * step.compression_passes;
    // Tensor ranks add what their parts give, and share the sums: about as much as a sum and a gather.
    const double of_tensor_ranks = step.compressed_bytes * weights * static_cast<double>(t);
    unit.replicas =
        exchange("all_reduce", step.compressed_bytes * weights / static_cast<double>(n),
                 layout.replicate, t * n) +
        over_shards("all_gather", 4.0 + step.compressed_bytes) +
        (t > 1 ? exchange("all_reduce", of_tensor_ranks, t, 1) +
                     exchange("all_gather", of_tensor_ranks / static_cast<double>(n), t, 1)
               : 0.0) +
        rates_.seconds(Launch{.kernel = "add", .read = static_cast<std::int64_t>(passes)});
  } else if (layout.sync_every == 0) {
    const double of_a_rank = dense / parts(n) + experts / parts(n / layout.expert);
    unit.replicas = exchange("all_reduce", step.replica_bytes * of_a_rank, layout.replicate, t * n);
  }
  return unit;
}

// A fragment's exchange hides under the steps until it is applied.
void StepTimes::add_outer_exchanges(const StepShape& step, StepTime& time) const {
  const Layout& layout = step.layout;
  if (layout.sync_every == 0) return;
  const auto fragments = static_cast<double>(layout.fragments);
  const std::int64_t sharers = layout.shard * layout.context;
  const double owned = weights_of_a_rank(step, layout.stage == 0 ? 1 : sharers);
  const double fragment = exchange("all_reduce", owned * step.outer_bytes / fragments,
                                   layout.replicate, layout.tensor * sharers);
  const double under = static_cast<double>(layout.sync_delay) * time.total();
  time.apart = std::max(0.0, fragment - under) * fragments / static_cast<double>(layout.sync_every);
}

// The exposed part of gathers and reductions. Each hides under its own pass over the layers, apart
// from the first gather and the last reduction.
void StepTimes::add_data_exchanges(const StepShape& step, const LayerTime& layer,
                                   StepTime& time) const {
  const Layout& layout = step.layout;
  const double layers = layers_of_a_rank(step);
  const auto [gather, reduce, replicas] = unit_exchanges(step);
  const double uses = gathers_of(layout);
  const double passes =
      layout.reduces_every_micro_step ? static_cast<double>(layout.micro_batches) : 1.0;
  const double all_gathers = uses * gather * layers;
  const double all_reduces = (passes * reduce + replicas) * layers;
  const auto exposed = [layers](double of_unit, double under) {
    return of_unit + (layers - 1.0) * std::max(0.0, of_unit - under);
  };
  time.gathers = all_gathers;
  time.reductions = all_reduces;
  if (!step.form.overlaps_reductions) return;
  if (layout.stage < 3 || layout.prefetch_depth > 0) {
    const double under = std::min(layer.forward(), layer.backward());
    time.gathers = std::min(all_gathers, std::max(1.0, uses) * exposed(gather, under));
  }
  const double left = std::max(0.0, layer.backward() - (layout.reshards ? gather : 0.0));
  time.reductions = std::min(
      all_reduces, (passes - 1.0) * exposed(reduce, left) + exposed(reduce + replicas, left));
  time.slowed =
      rates_.taken_by_exchanges() * (all_gathers + all_reduces - time.gathers - time.reductions);
}

// Pulls hide under the first forward, pushes under the backward of the last micro-batch or of each.
// The embedding is pulled first and pushed last, so it hides under nothing.
void StepTimes::add_server_exchanges(const StepShape& step, const LayerTime& layer,
                                     const LayerTime& end, StepTime& time) const {
  const Layout& layout = step.layout;
  const auto workers = static_cast<double>(layout.shard),
             servers = static_cast<double>(layout.servers),
             layers = static_cast<double>(step.model.layers);
  // At stage 3 a worker pulls its slices alone, and servers send each key once.
  const double kept = layout.stage == 3 ? 1.0 / workers : 1.0;
  const auto seconds = [&](double bytes, double weights) {
    return rates_.seconds(ServerExchange{.bytes = bytes * weights,
                                         .bytes_of_a_server = bytes * weights * workers / servers,
                                         .partners = std::max(workers, servers)});
  };
  const double ends = step.model.end_weights() * (step.model.tied ? 1.0 : 2.0);
  const double of_layers = step.model.weights() - ends;
  const auto exposed = [&](double bytes, double under) {
    const double first = seconds(bytes, step.model.end_weights());
    const double all = seconds(bytes, ends) + layers * seconds(bytes, of_layers / layers);
    return first + std::max(0.0, all - first - under);
  };
  const double passes =
      layout.reduces_every_micro_step ? static_cast<double>(layout.micro_batches) : 1.0;
  time.gathers += exposed(kept * step.gather_bytes, layers * layer.forward() + end.forward());
  time.reductions = passes * exposed(step.reduce_bytes, layers * layer.backward() + end.backward());
}

// State that a rank owns is read and written once, and its gradients are read for the norm.
void StepTimes::add_update(const StepShape& step, double forward, StepTime& time) const {
  const Layout& layout = step.layout;
  const std::int64_t sharers = layout.stage == 0    ? 1
                               : layout.servers > 0 ? layout.servers
                                                    : layout.shard * layout.context;
  const bool over_replicas = step.divides_over_replicas && layout.stage >= 1;
  const double owned =
      weights_of_a_rank(step, sharers) / static_cast<double>(over_replicas ? layout.replicate : 1);
  const auto memory = [&](double bytes, std::string_view kernel) {
    return rates_.seconds(Launch{.kernel = kernel, .read = static_cast<std::int64_t>(bytes)});
  };
  time.update = memory(owned * step.update_bytes, "update") + memory(owned * 4.0, "sum_of_squares");
  const bool in_slices = layout.stage >= 2 && layout.reduces_every_micro_step;
  time.accumulation =
      static_cast<double>(layout.micro_batches - 1) *
      memory(weights_of_a_rank(step, in_slices ? sharers : 1) * step.form.accumulate_bytes, "add");
  time.disk = owned * std::max(step.disk_bytes / rates_.disk_bytes(),
                               step.host_bytes / rates_.host_memory_bytes());
  // The next forward waits for the first unit's update; later ones hide under it.
  if (step.host_updates)
    time.disk = std::max(time.disk / layers_of_a_rank(step), time.disk - forward);
  if (layout.servers == 0) return;
  // Servers add what workers sent. With late publishing, they do so while workers compute.
  time.update += memory(owned * static_cast<double>(layout.shard) * 12.0, "add");
  const double meanwhile = time.total() - time.update;
  if (layout.publishes_late) time.update = std::max(0.0, time.update - meanwhile);
}

LayerTime StepTimes::average_layer(const StepShape& step) {
  const double share = share_of_mixtures(step.model);
  if (share == 0.0) return known(step, 0);
  const LayerTime mixture = known(step, 1);
  return share == 1.0 ? mixture : mixed(known(step, 0), mixture, share);
}

// Bubble and messages, and what launching takes longer than computing.
void StepTimes::add_waiting(const StepShape& step, const LayerTime& layer, const LayerTime& end,
                            double slowest, StepTime& time) const {
  const Layout& layout = step.layout;
  const auto p = static_cast<double>(layout.pipeline),
             m = static_cast<double>(layout.micro_batches);
  const double layers = layers_of_a_rank(step);
  const double f = layers * layer.forward() + end.forward() / p;
  const double b = layers * layer.backward() + end.backward() / p;
  const double w = layers * layer.matmuls_weight + end.matmuls_weight / p;
  const double stream =
      static_cast<double>(size_of(step.dtype) * step.seq_length * layout.sequences *
                          step.model.width) /
      static_cast<double>(layout.context * (layout.sequence_parallel ? layout.tensor : 1));
  const std::int64_t stride = layout.world() / layout.pipeline;
  const PipelineTime pipeline = pipeline_time(
      {.order = layout.order,
       .ranks = layout.pipeline,
       .chunks = layout.chunks,
       .micro_batches = layout.micro_batches,
       .forward = f,
       .input_gradient = b - w,
       .weight_gradient = w,
       .slowest = slowest * (f + b),
       .message = layout.pipeline > 1 ? exchange("broadcast", stream, 2, stride) : 0.0,
       .waits_for_messages = step.form.waits_for_messages});
  time.bubble = pipeline.bubble;
  time.messages = pipeline.messages;
  if (step.cuda_graphs) return;
  const double calls = m * (layers * layer.launches + end.launches / p);
  time.host = std::max(0.0, calls * rates_.host_seconds_of_a_call() - m * (f + b));
}

StepTime StepTimes::of(const StepShape& step) {
  const Layout& layout = step.layout;
  const LayerTime layer = average_layer(step);
  const LayerTime& end = known(step, 2);
  const auto p = static_cast<double>(layout.pipeline);
  // The slowest rank decides; its further time is counted as what it does most.
  const double head = (end.forward() + end.backward()) / (layer.forward() + layer.backward());
  const double slowest =
      slowest_share(step.model.layers, layout.pipeline, layout.chunks, head, step.form.even_layers);
  const double times = static_cast<double>(layout.micro_batches) * slowest;
  const auto in_layers = [&](double of_layer, double of_head = 0.0) {
    return times * (layers_of_a_rank(step) * of_layer + of_head / p);
  };
  StepTime time{
      .matmuls = in_layers(layer.matmuls_forward + layer.matmuls_input + layer.matmuls_weight,
                           end.matmuls_forward + end.matmuls_input + end.matmuls_weight),
      .attention = in_layers(layer.attention_forward + layer.attention_backward),
      .memory = in_layers(layer.memory_forward + layer.memory_backward, end.memory_backward),
      .recompute = in_layers(layer.again),
      .tensor = in_layers(2.0 * layer.tensor + layer.tensor_again),
      .context = in_layers(2.0 * layer.context),
      .expert = in_layers(2.0 * layer.expert)};
  add_waiting(step, layer, end, slowest, time);
  if (layout.servers == 0 || layout.stage == 3) add_data_exchanges(step, layer, time);
  if (layout.servers > 0) add_server_exchanges(step, layer, end, time);
  add_update(step, layers_of_a_rank(step) * layer.forward() + end.forward() / p, time);
  add_outer_exchanges(step, time);
  return time;
}

}  // namespace sherd::engine
