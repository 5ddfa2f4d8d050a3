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

ParameterCut expert_cut(const ModelShape& own, const ParameterSpec& parameter) {
  const std::int64_t rows = parameter.shape[0], columns = parameter.shape[1];
  const int degree = own.expert.degree;
  ParameterCut cut{.name = parameter.name, .cut = Cut::kRows, .shape = {degree * rows, columns}};
  for (int rank = 0; rank < degree; ++rank) {
    cut.matrix_rows.insert(cut.matrix_rows.end(), parameter.matrix_rows.begin(),
                           parameter.matrix_rows.end());
  }
  cut.held.push_back({{own.expert.rank * rows, rows, 0, columns}, true});
  return cut;
}

bool is_of_experts(std::string_view parameter) {
  return parameter.find(".moe.experts.") != std::string_view::npos;
}

}  // namespace sherd::model
