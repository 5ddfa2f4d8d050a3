#include "sharding/processes/gpus_of_processes.h"

#include <fmt/format.h>

#include "sharding/comm/nccl.h"

namespace sherd::sharding {
namespace {

class Notices final : public NcclProcesses {
 public:
  explicit Notices(ControlLinks& links)
      : links_(links), world_(fmt::format("world {}: ", links.next_world())) {}
  void tell(const std::vector<int>& ranks, const std::string& name,
            const std::string& notice) override {
    links_.tell(ranks, world_ + name, notice);
  }
  std::optional<std::string> told(const std::string& name,
                                  std::chrono::milliseconds within) override {
    return links_.told(world_ + name, within);
  }
  void abort(const std::string& reason) override { links_.abort(reason); }
  std::string abort_reason() override { return links_.aborted() ? links_.reason() : ""; }

 private:
  ControlLinks& links_;
  const std::string world_;
};

struct Gpus {
  Notices notices;
  std::shared_ptr<Rendezvous> rendezvous;  // ends before what it asks
};

}  // namespace

std::shared_ptr<Rendezvous> make_nccl_rendezvous(ControlLinks& links, int device,
                                                 std::chrono::milliseconds timeout) {
  const auto gpus = std::make_shared<Gpus>(Gpus{Notices(links), nullptr});
  gpus->rendezvous = make_nccl_rendezvous({links.process(), {device}, links.num_processes()},
                                          timeout, &gpus->notices);
  // On whatever thread learns of it, for as long as there is a world to abort.
  links.on_abort([&links, world = std::weak_ptr(gpus)] {
    if (const auto alive = world.lock()) alive->rendezvous->abort(links.reason());
  });
  return {gpus, gpus->rendezvous.get()};
}

}  // namespace sherd::sharding
