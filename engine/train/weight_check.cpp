#include "engine/train/weight_check.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <tuple>

#include "core/error.h"
#include "engine/model/parameters.h"
#include "engine/model/transformer.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {
namespace {

using sharding::Piece;
using sharding::UnitState;

constexpr int kNumbersOfEntry = 4;

double hash_of_place(const std::array<std::int64_t, 7>& place) {
  return static_cast<double>(XXH3_64bits(place.data(), sizeof place) >> 12);
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += fmt::format("{}{}", before, ranks[i]);
  }
  return text;
}

}  // namespace

std::vector<BufferSpec> WeightCheck::buffers(const TrainingOptions& options) {
  if (options.weight_hash_interval == 0) return {};
  return {
      {"weight_hashes", Category::kCheckpoint, DType::kU8, kStagingBytes, kAlways, Home::kHost}};
}

WeightCheck::WeightCheck(const TrainingOptions& options, ShardedModel& model) : model_(model) {
  if (!model.rank().separate_memory()) return;
  for (const BufferSpec& buffer : buffers(options)) staging_ = model.rank().acquire(buffer);
}

std::uint64_t WeightCheck::hash_of(const Tensor& values) const {
  if (!staging_) return XXH3_64bits(values.data, static_cast<std::size_t>(values.bytes()));
  Stream& stream = model_.rank().compute();
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  SHERD_CHECK(state && XXH3_64bits_reset(state.get()) == XXH_OK, "no memory for a hash");
  const auto* const from = static_cast<const std::byte*>(values.data);
  for (std::int64_t at = 0; at < values.bytes(); at += kStagingBytes) {
    const std::int64_t bytes = std::min(kStagingBytes, values.bytes() - at);
    stream.copy(from + at, staging_.tensor().data, bytes);
    stream.synchronize();
    XXH3_64bits_update(state.get(), staging_.tensor().data, static_cast<std::size_t>(bytes));
  }
  return XXH3_64bits_digest(state.get());
}

WeightCheck::Entry WeightCheck::entry_of(const ParameterSpec& parameter, Kind kind, const Box& box,
                                         std::int64_t first, const Tensor& values) const {
  const std::uint64_t hash = hash_of(values);
  return {8.0 * parameter.index + static_cast<double>(kind),
          hash_of_place({box.first_row, box.num_rows, box.first_column, box.num_columns, first,
                         values.numel, static_cast<std::int64_t>(values.dtype)}),
          static_cast<double>(hash & 0xffffffff), static_cast<double>(hash >> 32)};
}

// What is kept as bytes: a part in blocks, named by a parameter that ranks cut, if there is one; and
// quantised parameters.
void WeightCheck::add_bytes(const UnitState& unit, std::vector<Entry>& entries) const {
  const sharding::UnitPlan& plan = unit.plan();
  const auto first_box = [](const ParameterSpec& parameter) {
    return parameter.cut ? parameter.cut->held.front().box : Box{};
  };
  if (const Tensor coded = unit.coded_part()) {
    const auto& parameters = plan.spec.parameters;
    const auto cut = std::ranges::find_if(
        parameters, [](const ParameterSpec& parameter) { return parameter.cut.has_value(); });
    const ParameterSpec& by = cut == parameters.end() ? parameters.front() : *cut;
    entries.push_back(entry_of(by, Kind::kCoded, first_box(by), unit.own_part(), coded));
  }
  if (plan.quantised.empty()) return;
  for (const int slice : unit.frozen_slices()) {
    for (const Piece& piece : plan.quantised_layout.pieces(slice)) {
      const ParameterSpec& parameter = plan.quantised[static_cast<std::size_t>(piece.parameter)];
      const auto [codes, scales] = sharding::quantised_piece(unit.quantised_slice(slice), piece);
      for (const auto& [part, of] : {std::pair(0, &codes), {1, &scales}}) {
        entries.push_back(entry_of(parameter, Kind::kQuantised, first_box(parameter),
                                   2 * piece.first_element + part, *of));
      }
    }
  }
}

std::vector<WeightCheck::Entry> WeightCheck::own_entries() const {
  std::vector<Entry> entries;
  const auto add_stretch = [&](const ParameterSpec& parameter, Kind kind, const Box& box,
                               std::int64_t first, const Tensor& values) {
    entries.push_back(entry_of(parameter, kind, box, first, values));
  };
  // The elements of a piece, which `held` begins with.
  const auto add = [&](const ParameterSpec& parameter, Kind kind, const Piece& piece,
                       const Tensor& held) {
    if (!parameter.cut) {
      return add_stretch(parameter, kind, {}, piece.first_element, held.part(0, piece.count));
    }
    std::int64_t before = 0;
    for (const HeldBox& each : parameter.cut->held) {
      const std::int64_t begin = std::max(piece.first_element, before);
      const std::int64_t end =
          std::min(piece.first_element + piece.count, before + each.box.numel());
      if (begin < end) {
        add_stretch(parameter, kind, each.box, begin - before,
                    held.part(begin - piece.first_element, end - begin));
      }
      before += each.box.numel();
    }
  };
  const auto add_slice = [&](const std::vector<ParameterSpec>& parameters, Kind kind,
                             const std::vector<Piece>& pieces, const Tensor& slice) {
    for (const Piece& piece : pieces) {
      add(parameters[static_cast<std::size_t>(piece.parameter)], kind, piece,
          slice.part(piece.position, piece.count));
    }
  };
  for (const UnitState& unit : model_.units()) {
    const sharding::UnitPlan& plan = unit.plan();
    // An owner that publishes late has updated what the others will get after this step.
    const Tensor late = unit.published();
    const Tensor full = late.numel > 0 ? late : unit.resident_parameters();
    if (unit.trains() && full.numel == unit.layout().numel()) {
      for (int i = 0; i < std::ssize(plan.spec.parameters); ++i) {
        const ParameterSpec& parameter = plan.spec.parameters[static_cast<std::size_t>(i)];
        const std::int64_t numel = parameter.numel();
        add(parameter, Kind::kFull, {i, 0, numel, 0}, full.part(unit.layout().offset(i), numel));
      }
    }
    if (unit.trains() && full.numel > 0 && full.numel < unit.layout().numel()) {
      const std::int64_t numel = unit.layout().slice_numel();
      for (int i = 0; i < plan.slices_per_part(); ++i) {
        add_slice(plan.spec.parameters, Kind::kFull,
                  unit.layout().pieces(unit.own_part() * plan.slices_per_part() + i),
                  full.part(i * numel, numel));
      }
    }
    // f32 slices of full parameters in f32 are the same memory.
    for (const int slice : unit.trains() ? unit.updated_slices() : std::vector<int>()) {
      const bool is_apart =
          full.numel == 0 || late.numel > 0 || unit.rounded_slice(slice).numel > 0;
      if (!is_apart) continue;
      add_slice(plan.spec.parameters, Kind::kMaster, unit.layout().pieces(slice),
                unit.fp32_slice(slice));
    }
    if (plan.has_frozen()) {
      for (const int slice : unit.frozen_slices()) {
        add_slice(plan.frozen, Kind::kFrozen, plan.frozen_layout.pieces(slice),
                  unit.frozen_slice(slice));
      }
    }
    add_bytes(unit, entries);
  }
  return entries;
}

// The first number of a row is the number of entries in all.
std::vector<std::vector<WeightCheck::Entry>> WeightCheck::all_entries(const std::vector<Entry>& own,
                                                                      int count,
                                                                      const Exchange& exchange) {
  const auto at_once = static_cast<std::size_t>((count - 1) / kNumbersOfEntry);
  std::vector<std::vector<Entry>> entries;
  std::size_t most = own.size();
  for (std::size_t begin = 0; begin == 0 || begin < most; begin += at_once) {
    std::vector<double> row(static_cast<std::size_t>(count));
    row[0] = static_cast<double>(own.size());
    for (std::size_t i = begin; i < std::min(begin + at_once, own.size()); ++i) {
      double* to = row.data() + 1 + (i - begin) * kNumbersOfEntry;
      to[0] = own[i].what, to[1] = own[i].place, to[2] = own[i].low, to[3] = own[i].high;
    }
    const std::vector<std::vector<double>> rows = exchange(row);
    entries.resize(rows.size());
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      const auto of_rank = static_cast<std::size_t>(rows[rank][0]);
      most = std::max(most, of_rank);
      for (std::size_t i = begin; i < std::min(begin + at_once, of_rank); ++i) {
        const double* from = rows[rank].data() + 1 + (i - begin) * kNumbersOfEntry;
        entries[rank].push_back({from[0], from[1], from[2], from[3]});
      }
    }
  }
  return entries;
}

// Replicas that train apart have copies of frozen weights alone.
int WeightCheck::replica_of(const Entry& entry, int rank) const {
  const std::vector<UnitState>& units = model_.units();
  const auto kind = static_cast<Kind>(static_cast<std::int64_t>(entry.what) % 4);
  const bool is_trained = kind == Kind::kFull || kind == Kind::kMaster;
  if (!is_trained || units.empty() || !units.front().placement().replicas_apart) return 0;
  return model_.rank().mesh.coordinate(rank, sharding::kReplicateAxis);
}

std::string WeightCheck::name_of(double what) const {
  const auto index = static_cast<std::uint32_t>(what / 8.0);
  for (const UnitSpec& unit : model::parameter_table(model_.shape())) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.index != index) continue;
      return what == 8.0 * index + static_cast<double>(Kind::kCoded) ? unit.name : parameter.name;
    }
  }
  return "a parameter";
}

// Every rank sees the same entries, so every rank says the same.
void WeightCheck::run(std::int64_t step, int count, const Exchange& exchange) {
  const sharding::Rank& rank = model_.rank();
  rank.gather().synchronize();
  rank.compute().synchronize();
  const std::vector<std::vector<Entry>> entries = all_entries(own_entries(), count, exchange);
  using Place = std::tuple<double, double, int>;  // what, where, and in which replica
  std::map<Place, std::map<std::pair<double, double>, std::vector<int>>> held;
  for (int r = 0; r < std::ssize(entries); ++r) {
    for (const Entry& entry : entries[static_cast<std::size_t>(r)]) {
      held[{entry.what, entry.place, replica_of(entry, r)}][{entry.low, entry.high}].push_back(r);
    }
  }
  for (const auto& [key, values] : held) {
    if (values.size() == 1) continue;
    const auto most =
        std::ranges::max_element(values, {}, [](const auto& each) { return each.second.size(); });
    const auto num_largest = std::ranges::count_if(
        values, [&](const auto& each) { return each.second.size() == most->second.size(); });
    std::vector<int> ranks;
    for (auto each = values.begin(); each != values.end(); ++each) {
      if (num_largest == 1 && each == most) continue;
      ranks.insert(ranks.end(), each->second.begin(), each->second.end());
    }
    std::ranges::sort(ranks);
    const std::string who =
        num_largest > 1
            ? fmt::format(
                  "the copies of {} on {} differ, and no majority says which "
                  "are right",
                  name_of(std::get<0>(key)), list_of(ranks))
            : fmt::format("the copy of {} on {} differs from that on {}", name_of(std::get<0>(key)),
                          list_of(ranks), list_of(most->second));
    const std::string when =
        last_agreed_ ? fmt::format(
                           "All copies agreed at step {}; resume from the newest "
                           "checkpoint up to that step",
                           *last_agreed_)
                     : "Nothing was compared before in this run; resume from its newest checkpoint";
    throw TrainingError(
        "step {}: {} (training.weight_hash_interval). {}, and suspect the memory of "
        "the machine of {}.",
        step + 1, who, when, list_of(ranks));
  }
  last_agreed_ = step + 1;
}

}  // namespace sherd::engine
