#include "engine/model/mlp/expert_adapters.h"

#include "kernels/experts.h"

namespace sherd::model {

kernels::ExpertAdapters expert_adapters(const Activations& activations, const ModelShape& shape,
                                        const BlockParameters& parameters) {
  const auto list = [&](SiteId site) {
    std::vector<kernels::ExpertAdapter> adapters;
    for (const AdapterTensors& own : parameters[site].adapters) {
      const AdapterTarget& target = activations.adapters.target_of(own);
      adapters.push_back({own.a, own.b, target.first_row, target.rows});
    }
    return adapters;
  };
  kernels::ExpertAdapters adapters{.rank = shape.adapter.rank,
                                   .scale = activations.adapters.scale(),
                                   .up = list(SiteId::kExpertsUp),
                                   .down = list(SiteId::kExpertsDown)};
  if (!adapters) return adapters;
  const std::int64_t C = shape.owned_experts().buffer_rows;
  adapters.h = rows(activations.experts.adapter_h, C, shape.adapter.rank);
  adapters.z = rows(activations.experts.adapter_z, C, shape.moe.ffn_width);
  return adapters;
}

void set_gradients(kernels::ExpertAdapters& adapters, const ExpertGradients& gradients) {
  const auto set = [](std::vector<kernels::ExpertAdapter>& list,
                      const std::vector<AdapterTensors>& of_list) {
    SHERD_CHECK(list.size() == of_list.size(), "{} adapters of experts with {} gradients",
                list.size(), of_list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i].d_a = of_list[i].a;
      list[i].d_b = of_list[i].b;
    }
  };
  set(adapters.up, gradients.up_adapters);
  set(adapters.down, gradients.down_adapters);
}

}  // namespace sherd::model
