#include "engine/model/collectives.h"

#include "core/error.h"

namespace sherd::model {
namespace {

class NoCollectives final : public Collectives {
 public:
  void sum(const char*, const Tensor&) override {}
  void sum_copies(const char*, const Tensor&) override {}
  void reduce_scatter(const char* what, const Tensor&, const Tensor&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void gather(const char*, const Tensor&) override {}
  void all_to_all(const char* what, const Tensor&, const Tensor&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void gather_positions(const char* what, const Tensor&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void reduce_scatter_positions(const char* what, const Tensor&, const Tensor&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void gather_counts(const char* what, const Tensor&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void exchange_rows(const char* what, const Tensor&, const std::vector<ElementRange>&,
                     const Tensor&, const std::vector<ElementRange>&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void pass_on(const char* what, const Tensor&, const Tensor&) override {
    SHERD_CHECK(false, "{} of a whole model", what);
  }
  void await_rows() override { SHERD_CHECK(false, "no rows are exchanged in a whole model"); }
  void await_passed() override { SHERD_CHECK(false, "nothing is passed on in a whole model"); }
  void await_sent() override { SHERD_CHECK(false, "nothing is passed on in a whole model"); }
};

}  // namespace

Collectives& no_collectives() {
  static NoCollectives none;
  return none;
}

}  // namespace sherd::model
