#include "engine/data/balance.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"

namespace sherd::data {
namespace {

using Costs = std::vector<std::int64_t>;
using Items = std::vector<std::int32_t>;

constexpr std::size_t kMostCompared = std::size_t{1} << 24;

std::int64_t cost_of(const Costs& costs, std::int32_t item) {
  return costs[static_cast<std::size_t>(item)];
}

// Equal numbers of items in each part, at about the same cost.
class Parts {
 public:
  Parts(const Costs& costs, std::size_t num_parts)
      : costs_(costs), room_(costs.size() / num_parts), parts_(num_parts), sums_(num_parts, 0) {
    deal();
    const std::size_t compared = costs.size() * room_;  // by an exchange
    for (std::size_t left = kMostCompared; left >= compared && exchange();) left -= compared;
  }

  const std::vector<Items>& items() const { return parts_; }
  const Costs& sums() const { return sums_; }

 private:
  void deal() {
    Items order(costs_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater{},
                             [this](std::int32_t item) { return cost_of(costs_, item); });
    std::set<std::pair<std::int64_t, std::size_t>> with_room;
    for (std::size_t part = 0; part < parts_.size(); ++part) with_room.emplace(0, part);
    for (const std::int32_t item : order) {
      const std::size_t least = with_room.extract(with_room.begin()).value().second;
      parts_[least].push_back(item);
      sums_[least] += cost_of(costs_, item);
      if (parts_[least].size() < room_) with_room.emplace(sums_[least], least);
    }
  }

  // One exchange between the most expensive part and another. False: none helps.
  bool exchange() {
    const auto most = static_cast<std::size_t>(std::ranges::max_element(sums_) - sums_.begin());
    std::int64_t best = sums_[most];
    std::int32_t *from = nullptr, *to = nullptr;
    std::size_t other = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (std::int32_t& mine : parts_[most]) {
        for (std::int32_t& its : parts_[part]) {
          const std::int64_t moved = cost_of(costs_, mine) - cost_of(costs_, its);
          const std::int64_t larger = std::max(sums_[most] - moved, sums_[part] + moved);
          if (part == most || larger >= best) continue;
          best = larger, from = &mine, to = &its, other = part;
        }
      }
    }
    if (from == nullptr) return false;
    const std::int64_t moved = cost_of(costs_, *from) - cost_of(costs_, *to);
    sums_[most] -= moved;
    sums_[other] += moved;
    std::swap(*from, *to);
    return true;
  }

  const Costs& costs_;
  std::size_t room_;
  std::vector<Items> parts_;
  Costs sums_;
};

}  // namespace

std::vector<std::int32_t> balanced_order(std::span<const std::int64_t> costs,
                                         const StepParts& parts) {
  const std::int64_t rows = std::ssize(costs), num = rows / parts.micro_batch_size;
  SHERD_CHECK(num * parts.micro_batch_size == rows && num % parts.num_replicas == 0,
              "{} rows in micro-batches of {} on {} replicas", rows, parts.micro_batch_size,
              parts.num_replicas);
  Items order;
  if (std::ranges::adjacent_find(costs, std::not_equal_to{}) == costs.end()) {
    order.resize(costs.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const Costs of_rows(costs.begin(), costs.end());
  const Parts batches(of_rows, static_cast<std::size_t>(num));
  const Parts replicas(batches.sums(), static_cast<std::size_t>(parts.num_replicas));
  for (Items of_replica : replicas.items()) {
    std::ranges::sort(of_replica, {}, [&](std::int32_t batch) {
      return std::pair(cost_of(batches.sums(), batch), batch);
    });
    for (const std::int32_t batch : of_replica) {
      const Items& items = batches.items()[static_cast<std::size_t>(batch)];
      order.insert(order.end(), items.begin(), items.end());
    }
  }
  return order;
}

}  // namespace sherd::data
