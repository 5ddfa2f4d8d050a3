#include "engine/train/diagnosis.h"

#include <algorithm>
#include <cmath>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/model/transformer.h"
#include "kernels/pointwise.h"
#include "sharding/zero/gradient_reduction.h"

namespace sherd::engine {

// The index of the first; -1: none.
std::int64_t Diagnosis::find_non_finite(const Tensor& values) const {
  std::int64_t found = -1;
  const sharding::Rank& rank = model_.rank();
  rank.each_part(rank.compute(), values, false, [&](const Tensor& part, std::int64_t first) {
    if (found >= 0) return;
    const std::int64_t at = kernels::find_non_finite(rank.compute(), part);
    if (at >= 0) found = first + at;
  });
  return found;
}

// Of the slice that is this rank's own: all ranks together look at each element once.
template <class SliceOf>
Diagnosis::Finding Diagnosis::find_in_slices(const SliceOf& slice_of) const {
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    const sharding::UnitState& state = model_.units()[unit];
    if (!state.trains() || state.updated_slices().empty()) continue;
    const Tensor slice = slice_of(state);
    for (const sharding::Piece& piece : state.layout().pieces(state.own_slice())) {
      const std::int64_t at = find_non_finite(slice.part(piece.position, piece.count));
      if (at < 0) continue;
      return {
          0.0, static_cast<double>(model_.number_of(unit)), static_cast<double>(piece.parameter),
          static_cast<double>(
              state.spec().parameters[piece.parameter].element_of_whole(piece.first_element + at))};
    }
  }
  return {};
}

void Diagnosis::look_at_slices() {
  own_.in_slice = find_in_slices(
      [](const sharding::UnitState& unit) { return unit.gradient(unit.own_slice()); });
}

std::string Diagnosis::non_finite_weight() {
  own_.in_weights = find_in_slices(
      [](const sharding::UnitState& unit) { return unit.fp32_slice(unit.own_slice()); });
  const std::vector<Report> reports = reports_.all_gather("diagnosis", own_);
  for (std::size_t owner = 0; owner < reports.size(); ++owner) {
    const Finding& finding = reports[owner].in_weights;
    if (finding.found()) return fmt::format("{}, slice owner rank {}", name_of(finding), owner);
  }
  return {};
}

// When a backward on one rank would close the unit: micro-batch by micro-batch, from the head to
// the embedding.
double Diagnosis::order_of(int unit, sharding::UnitEnd end) const {
  const auto num_units = static_cast<double>(model_.num_table_units() + 1);
  const int number = model_.number_of(static_cast<std::size_t>(unit));
  const auto& tie = model_.units()[static_cast<std::size_t>(unit)].plan().tie;
  const bool is_head = end == sharding::UnitEnd::kHead || (tie && !tie->is_first);
  const double place = is_head ? 0.0 : num_units - static_cast<double>(number);
  return static_cast<double>(model_.gradients().micro_step()) * (num_units + 1.0) + place;
}

Diagnosis::Finding Diagnosis::find_in_full(int unit, sharding::UnitEnd end,
                                           const Tensor& full) const {
  const std::vector<Tensor> views = model_.units()[unit].layout().views(full);
  for (std::size_t parameter = 0; parameter < views.size(); ++parameter) {
    const std::int64_t at = kernels::find_non_finite(model_.rank().compute(), views[parameter]);
    if (at < 0) continue;
    return {order_of(unit, end),
            static_cast<double>(model_.number_of(static_cast<std::size_t>(unit))),
            static_cast<double>(parameter),
            static_cast<double>(
                model_.units()[unit].spec().parameters[parameter].element_of_whole(at))};
  }
  return {};
}

void Diagnosis::watch_gradients() {
  model_.gradients().inspect = [this](int unit, sharding::UnitEnd end, const Tensor& full) {
    if (!own_.at_origin.found()) own_.at_origin = find_in_full(unit, end, full);
  };
}

void Diagnosis::stop_watching(double own_loss_sum) {
  model_.gradients().inspect = nullptr;
  own_.loss_finite = std::isfinite(own_loss_sum) ? 1.0 : 0.0;
}

std::string Diagnosis::name_of(const Finding& finding) const {
  const model::ModelShape& shape = model_.shape();
  UnitSpec unit = model::parameter_table(shape)[static_cast<std::size_t>(finding.unit)];
  std::erase_if(unit.parameters, [&](const ParameterSpec& parameter) {
    return !model::is_trained(shape, parameter.name);
  });
  const ParameterSpec& parameter = unit.parameters[static_cast<std::size_t>(finding.parameter)];
  return fmt::format("tensor \"{}\" (element {}) of unit \"{}\"", parameter.name,
                     static_cast<std::int64_t>(finding.element), unit.name);
}

std::string Diagnosis::where() {
  const std::vector<Report> reports = reports_.all_gather("diagnosis", own_);
  for (std::size_t owner = 0; owner < reports.size(); ++owner) {
    const Finding& finding = reports[owner].in_slice;
    if (finding.found()) return fmt::format("{}, slice owner rank {}", name_of(finding), owner);
  }
  return "the loss";
}

std::string Diagnosis::explain(std::int64_t step, double loss, double norm) {
  const std::vector<Report> reports = reports_.all_gather("diagnosis", own_);

  // A NaN's sign depends on the machine and says nothing.
  const auto number = [](double x) { return std::isnan(x) ? "nan" : fmt::format("{}", x); };
  std::string text = fmt::format("step {}: loss is {}, gradient norm is {}.", step + 1,
                                 number(loss), number(norm));
  bool in_slice = false;
  for (std::size_t owner = 0; owner < reports.size() && !in_slice; ++owner) {
    const Finding& finding = reports[owner].in_slice;
    if (!finding.found()) continue;
    in_slice = true;
    text += fmt::format(" The gradient of {} is not finite; its slice belongs to rank {}.",
                        name_of(finding), owner);
  }
  const Report* origin = nullptr;
  for (const Report& report : reports) {
    if (!report.at_origin.found()) continue;
    if (!origin || report.at_origin.order < origin->at_origin.order) origin = &report;
  }
  if (origin) {
    text += fmt::format(
        " A replay of the step found it first on rank {}, in {}{}.", origin - reports.data(),
        name_of(origin->at_origin),
        std::ranges::any_of(reports, [](const Report& report) { return report.loss_finite == 0.0; })
            ? " after a loss that isn't finite"
            : "");
  } else if (in_slice) {
    text += " In a replay of the step every rank's own gradient was finite: only their sum is not.";
  } else {
    const auto bad = std::find_if(reports.begin(), reports.end(),
                                  [](const Report& report) { return report.loss_finite == 0.0; });
    text += " Every element of the gradient is finite";
    text += bad == reports.end()
                ? ", only its norm is not."
                : fmt::format("; token losses (unit \"{}\") of rank {} are not.",
                              model_.shape().tied ? "embedding" : "head", bad - reports.begin());
  }
  return text +
         " The parameters are as before this step. Lower optimizer.lr or "
         "gradient_clipping.max_norm, or check the data of this step.";
}

}  // namespace sherd::engine
