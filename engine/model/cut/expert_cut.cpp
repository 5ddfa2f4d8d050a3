#include "engine/model/cut/expert_cut.h"

#include "core/error.h"

namespace sherd::model {

ModelShape expert_part(const ModelShape& whole, int degree, int rank) {
  SHERD_CHECK(degree >= 1 && rank >= 0 && rank < degree && !whole.expert.is_cut(),
              "expert rank {} of {}", rank, degree);
  ModelShape own = whole;
  if (degree == 1) return own;
  if (whole.moe.experts % degree != 0 || !whole.moe.active()) {
    throw UsageError("{} expert ranks can't divide {} experts evenly.", degree, whole.moe.experts);
  }
  own.expert = {degree, rank};
  return own;
}

ParameterCut expert_cut(const ExpertPart& own, const ParameterSpec& parameter) {
  const std::int64_t columns = parameter.numel() / parameter.shape[0];  // 1 of a bias
  return expert_cut(own, ParameterCut{.name = parameter.name,
                                      .cut = Cut::kRows,
                                      .shape = parameter.shape,
                                      .matrix_rows = parameter.matrix_rows,
                                      .held = {{{0, parameter.shape[0], 0, columns}}}});
}

ParameterCut expert_cut(const ExpertPart& own, ParameterCut of_own) {
  for (HeldBox& held : of_own.held) held.box.first_row += own.rank * of_own.shape[0];
  of_own.shape[0] *= own.degree;
  const std::vector<std::int64_t> rows = of_own.matrix_rows;
  for (int rank = 1; rank < own.degree; ++rank) {
    of_own.matrix_rows.insert(of_own.matrix_rows.end(), rows.begin(), rows.end());
  }
  return of_own;
}

bool is_of_experts(std::string_view parameter) {
  return parameter.find(".moe.experts.") != std::string_view::npos;
}

}  // namespace sherd::model
