/// Published steps (measured_steps.csv) as shapes that the time model takes, and the scores of its
/// predictions.
#pragma once

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/plan/time/step_time.h"

namespace sherd::engine {

struct MeasuredStep {
  std::string table, device;
  StepShape shape{};
  double card = 0.0;  ///< bytes per second of a GPU between machines
  std::int64_t gpus = 0;
  double seconds = 0.0;
};

/// What is known of the programs that ran: what their papers and sources say they overlapped then.
/// `memory_share` is fitted to the tuning tables.
inline ProgramForm program_form(const std::string& software) {
  if (software == "megatron_2021" || software == "zero_2021") {
    return {.plain_attention = true,
            .whole_recompute = true,
            .overlaps_reductions = software == "zero_2021",
            .hides_second_gathers = true,
            .fast_cut_attention = true,
            .waits_for_messages = true,
            .even_layers = true,
            .memory_share = 0.49};
  }
  if (software.starts_with("fsdp")) return {.whole_recompute = true, .memory_share = 1.09};
  if (software == "nemo") {
    return {.hides_second_gathers = true,
            .fast_cut_attention = true,
            .even_layers = true,
            .memory_share = 0.83};
  }
  return {.whole_recompute = true, .hides_second_gathers = true, .fast_cut_attention = true};
}

inline Again again_of(const std::string& text) {
  if (text == "full") return Again::kBlocks;
  if (text == "attention") return Again::kAttention;
  return text == "selective" ? Again::kNormsAndActivations : Again::kNothing;
}

inline MeasuredStep measured_step(const std::map<std::string, std::string>& row) {
  const auto number = [&](const char* name) { return std::stoll(row.at(name)); };
  const std::string& software = row.at("software");
  MeasuredStep step{.table = row.at("table"),
                    .device = row.at("device"),
                    .card = 1e9 * std::stod(row.at("nic_gbs")),
                    .gpus = number("gpus"),
                    .seconds = std::stod(row.at("seconds"))};
  ModelSize& model = step.shape.model;
  model.layers = number("layers");
  model.width = number("hidden");
  model.query_heads = number("heads");
  model.kv_heads = number("kv_heads");
  model.head_width = model.width / model.query_heads;
  model.ffn_width = number("ffn");
  model.gated = number("gated") == 1;
  model.vocab_size = number("vocab");
  model.experts = number("experts");
  model.per_token = number("top_k");
  if (model.experts > 0) {
    model.mixtures = model.layers;
    model.expert_width = model.ffn_width;
    model.head_width = 128;
  }
  step.shape.form = program_form(software);
  model.dropout = step.shape.form.plain_attention;
  model.tied = step.shape.form.plain_attention || software.starts_with("fsdp");
  Layout& layout = step.shape.layout;
  layout.tensor = number("tp");
  layout.sequence_parallel = number("sp") == 1;
  layout.context = number("cp");
  layout.context_method = model::ContextMethod::kRing;
  layout.pipeline = number("pp");
  layout.chunks = number("chunks");
  if (layout.chunks > 1) layout.order = schedule::Order::kInterleaved1F1B;
  layout.expert = number("ep");
  layout.stage = static_cast<int>(number("stage"));
  layout.shard = step.gpus / (layout.tensor * layout.context * layout.pipeline);
  layout.again = again_of(row.at("recompute"));
  layout.sequences = number("micro");
  layout.micro_batches = number("batch") / layout.sequences / layout.shard;
  layout.reshards = layout.stage == 3;
  layout.reduces_every_micro_step = layout.stage >= 2;
  step.shape.seq_length = number("seq");
  const bool short_sums = software == "fsdp_pure" || software.ends_with("_2021");
  step.shape.reduce_bytes = short_sums ? 2.0 : 4.0;
  return step;
}

inline std::vector<MeasuredStep> measured_steps(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> names;
  std::vector<MeasuredStep> steps;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    if (names.empty()) {
      names = cells;
      continue;
    }
    std::map<std::string, std::string> row;
    for (std::size_t i = 0; i < names.size(); ++i) row[names[i]] = cells.at(i);
    steps.push_back(measured_step(row));
  }
  return steps;
}

/// The rule of choose_tables.py.
inline bool is_for_tuning(const std::string& table) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : table) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return hash % 3 == 0;
}

inline GpuRates rates_of_device(const std::string& device, double card) {
  GpuRates rates = trained_gpu(device.starts_with("a100") ? a100_rates() : h100_rates());
  rates.links.card = card;
  if (device == "a100_40") rates.copy_bytes *= 1555.0 / 2039.0;    // the datasheets'
  if (device == "h100_500w") rates.copy_bytes *= 2400.0 / 3350.0;  // the page says 2.4 TB/s
  return rates;
}

inline double predicted_seconds(const MeasuredStep& step) {
  const GpuStepRates rates(rates_of_device(step.device, step.card), true);
  return StepTimes(rates, 8).of(step.shape).total();
}

}  // namespace sherd::engine
