#include "engine/train/units/row_exchange.h"

#include <string>

#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"

namespace sherd::engine {

RowExchange::RowExchange(const sharding::Rank& rank)
    : compute_(rank.compute()),
      ranks_(rank.groups->get({std::string(sharding::kExpertAxis)}, sharding::Purpose::kTensor)),
      ready_(rank.make_event()),
      arrived_(sharding::counted(rank.make_event(), sharding::wait_kind(sharding::kExpertAxis))),
      stream_(rank.make_stream(StreamPurpose::kReduce, "experts")) {}

void RowExchange::begin() {
  compute_.record(*ready_);
  stream_->wait(*ready_);
}

void RowExchange::gather(const char* what, const Tensor& x) {
  begin();
  ranks_.all_gather(*stream_, what, x);
}

void RowExchange::exchange(const char* what, const Tensor& from,
                           const std::vector<ElementRange>& sends, const Tensor& to,
                           const std::vector<ElementRange>& receives) {
  begin();
  ranks_.all_to_all_v(*stream_, what, from, sends, to, receives);
}

void RowExchange::await() {
  stream_->record(*arrived_);
  compute_.wait(*arrived_);
}

}  // namespace sherd::engine
