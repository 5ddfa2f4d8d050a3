#include "engine/model/collectives.h"

namespace sherd::model {
namespace {

class NoCollectives final : public Collectives {
 public:
  void sum(const char*, const Tensor&) override {}
  void sum_copies(const char*, const Tensor&) override {}
  void gather(const char*, const Tensor&) override {}
};

}  // namespace

Collectives& no_collectives() {
  static NoCollectives none;
  return none;
}

}  // namespace sherd::model
