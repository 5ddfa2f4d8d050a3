#include "engine/diagnosis.h"

#include <algorithm>
#include <cmath>

#include "kernels/pointwise.h"

namespace sherd::engine {

void Diagnosis::look_at_slices() {
  const int rank = model_.rank().rank;
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    const sharding::UnitState& state = model_.units()[unit];
    const Tensor slice = state.gradient(rank);
    for (const sharding::Piece& piece : state.layout().pieces(rank)) {
      const std::int64_t at = kernels::find_non_finite(model_.rank().compute(),
                                                       slice.part(piece.position, piece.count));
      if (at < 0) continue;
      in_slice_ = {0.0, static_cast<double>(unit), static_cast<double>(piece.parameter),
                   static_cast<double>(piece.first_element + at)};
      return;
    }
  }
}

Diagnosis::Finding Diagnosis::find_in_full(int unit, const Tensor& full) const {
  const std::vector<Tensor> views = model_.units()[unit].layout().views(full);
  for (std::size_t parameter = 0; parameter < views.size(); ++parameter) {
    const std::int64_t at = kernels::find_non_finite(model_.rank().compute(), views[parameter]);
    if (at < 0) continue;
    return {looks_, static_cast<double>(unit), static_cast<double>(parameter),
            static_cast<double>(at)};
  }
  return {};
}

void Diagnosis::watch_gradients() {
  model_.gradients().inspect = [this](int unit, const Tensor& full) {
    if (at_origin_.order < 0.0) at_origin_ = find_in_full(unit, full);
    looks_ += 1.0;
  };
}

void Diagnosis::stop_watching(double own_loss_sum) {
  model_.gradients().inspect = nullptr;
  loss_finite_ = std::isfinite(own_loss_sum);
}

std::string Diagnosis::name_of(const Finding& finding) const {
  const sharding::UnitState& unit = model_.units()[static_cast<std::size_t>(finding.unit)];
  const ParameterSpec& parameter =
      unit.spec().parameters[static_cast<std::size_t>(finding.parameter)];
  return fmt::format("tensor \"{}\" (element {}) of unit \"{}\"", parameter.name,
                     static_cast<std::int64_t>(finding.element), unit.name());
}

std::vector<std::vector<double>> Diagnosis::all_findings() {
  const double mine[kNumbers] = {
      in_slice_.order,      in_slice_.unit,     in_slice_.parameter,
      in_slice_.element,    at_origin_.order,   at_origin_.unit,
      at_origin_.parameter, at_origin_.element, loss_finite_ ? 1.0 : 0.0};
  return exchange_.all("diagnosis", mine);
}

std::string Diagnosis::where() {
  const auto rows = all_findings();
  for (std::size_t owner = 0; owner < rows.size(); ++owner) {
    const auto& row = rows[owner];
    if (row[0] < 0.0) continue;
    return fmt::format("{}, slice owner rank {}", name_of({row[0], row[1], row[2], row[3]}), owner);
  }
  return "the loss";
}

std::string Diagnosis::explain(std::int64_t step, double loss, double norm) {
  const auto rows = all_findings();

  // A NaN's sign depends on the machine and says nothing.
  const auto number = [](double x) { return std::isnan(x) ? "nan" : fmt::format("{}", x); };
  std::string text =
      fmt::format("step {}: loss is {}, gradient norm is {}.", step, number(loss), number(norm));
  bool in_slice = false;
  for (std::size_t owner = 0; owner < rows.size(); ++owner) {
    const auto& row = rows[owner];
    if (row[0] < 0.0) continue;
    in_slice = true;
    text += fmt::format(" The gradient of {} is not finite; its slice belongs to rank {}.",
                        name_of({row[0], row[1], row[2], row[3]}), owner);
    break;
  }
  int origin = -1;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r][4] < 0.0) continue;
    if (origin < 0 || rows[r][4] < rows[static_cast<std::size_t>(origin)][4]) {
      origin = static_cast<int>(r);
    }
  }
  if (origin >= 0) {
    const auto& row = rows[static_cast<std::size_t>(origin)];
    text += fmt::format(" A replay of the step found it first on rank {}, in {}{}.", origin,
                        name_of({row[4], row[5], row[6], row[7]}),
                        row[8] == 0.0 ? " after a loss that isn't finite" : "");
  } else if (in_slice) {
    text += " In a replay of the step every rank's own gradient was finite: only their sum is not.";
  } else {
    const auto bad =
        std::find_if(rows.begin(), rows.end(), [](const auto& r) { return r[8] == 0.0; });
    text += " Every element of the gradient is finite";
    text += bad == rows.end()
                ? ", only its norm is not."
                : fmt::format("; token losses (unit \"{}\") of rank {} are not.",
                              model_.units()[model_.head_unit()].name(), bad - rows.begin());
  }
  return text +
         " The parameters are as before this step; a lower optimizer.lr or "
         "gradient_clipping.max_norm, or a look at the data of this step, comes next.";
}

}  // namespace sherd::engine
