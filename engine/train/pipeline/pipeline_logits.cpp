// Logits of the rank with the head, sent to the other ranks of its pipeline.

#include "engine/model/transformer.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/units/unit_runner.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::engine {

Tensor Pipeline::from_head(const Tensor& of_head, std::int64_t count) {
  if (pipeline_.whole()) return of_head;
  const Tensor logits = logits_.tensor().part(0, count);
  if (pipeline_.has_head()) copy(of_head, logits);
  const sharding::Rank& rank = runner_.rank();
  const auto done = rank.make_event();
  rank.compute().record(*done);
  rank.gather().wait(*done);
  rank.groups->get({std::string(sharding::kPipelineAxis)}, sharding::Purpose::kGather)
      .broadcast(rank.gather(), "logits", logits,
                 pipeline_.plan.layout().rank_of(pipeline_.plan.layout().last_chunk()));
  rank.gather().record(*done);
  rank.compute().wait(*done);
  return logits;
}

}  // namespace sherd::engine
