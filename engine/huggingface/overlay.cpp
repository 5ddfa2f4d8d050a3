#include "engine/huggingface/overlay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "core/shape_text.h"

namespace sherd::huggingface {
namespace {

using checkpoint::printable;

class OverlayBuilder {
 public:
  OverlayBuilder(const AdapterFolder& adapter, const Family& family, const ModelWeights& model)
      : adapter_(adapter),
        family_(family),
        model_(model),
        modules_(matrices_of(family, model)),
        map_(weight_map(family, model, true)),
        overlay_(std::make_shared<Overlay>()) {}

  std::shared_ptr<Overlay> build() {
    for (const AdapterPair& pair : adapter_.pairs()) add(pair);
    for (const WholeTensor& tensor : adapter_.whole_tensors()) add(tensor);
    if (is_tied()) settle_tied_head();
    note_whole_parameters();
    return std::move(overlay_);
  }

 private:
  bool is_tied() const {
    return std::ranges::find(model_.parameters, std::string("head.weight"), &NamedShape::name) ==
           model_.parameters.end();
  }

  void add(const AdapterPair& pair) {
    const auto found = std::ranges::find_if(
        modules_, [&](const MatrixModule& one) { return one.is_called(pair.module); });
    if (found == modules_.end()) {
      throw DataError("{}: has an adapter of {}, which the model lacks{}", adapter_.path(),
                      printable(pair.module),
                      is_tied() ? " (its head is tied to its embedding)" : "");
    }
    const NamedShape& ours = model_.parameters[static_cast<std::size_t>(found->ours)];
    if (pair.is_embedding) return add_embedding(pair, ours);
    MatrixDelta delta;
    delta.columns = ours.shape[1];
    delta.rank = pair.rank;
    delta.scale = adapter_.scale_of(pair);
    if (found->expert >= 0) return add_of_expert(pair, *found, ours, std::move(delta));
    std::vector<std::int64_t> b_shape;
    const auto boxes =
        boxes_of(family_, model_, {ours.name, {ours.shape[0], pair.rank}}, *found->module, b_shape);
    require_shape(pair.a, {pair.rank, delta.columns});
    require_shape(pair.b, b_shape);
    delta.a = adapter_.read(pair.a);
    place_rows(boxes, adapter_.read(pair.b), ours.shape[0], delta);
    overlay_->deltas[ours.name].push_back(std::move(delta));
  }

  void add_of_expert(const AdapterPair& pair, const MatrixModule& module, const NamedShape& ours,
                     MatrixDelta delta) {
    const auto [first, count] =
        rows_of_expert(module.module->part, ours.shape[0], model_.experts, module.expert);
    require_shape(pair.a, {pair.rank, delta.columns});
    require_shape(pair.b, {count, pair.rank});
    delta.first_row = first;
    delta.rows = count;
    delta.a = adapter_.read(pair.a);
    delta.b = adapter_.read(pair.b);
    overlay_->deltas[ours.name].push_back(std::move(delta));
  }

  // B's rows as ours, and which they are.
  static void place_rows(const std::vector<StridedBox>& boxes, const std::vector<float>& theirs,
                         std::int64_t all_rows, MatrixDelta& delta) {
    std::vector<float> all(static_cast<std::size_t>(all_rows * delta.rank));
    std::int64_t begin = all_rows * delta.rank, end = 0;
    for (const StridedBox& box : boxes) {
      for_each_run(box, 0, all_rows * delta.rank, all_rows * delta.rank, [&](const Run& run) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          const std::int64_t to = run.to + i * run.to_stride;
          all[static_cast<std::size_t>(to)] = theirs[static_cast<std::size_t>(run.from + i)];
          begin = std::min(begin, to);
          end = std::max(end, to + 1);
        }
      });
    }
    delta.first_row = begin / delta.rank;
    delta.rows = (end + delta.rank - 1) / delta.rank - delta.first_row;
    delta.b.assign(all.begin() + delta.first_row * delta.rank,
                   all.begin() + (delta.first_row + delta.rows) * delta.rank);
  }

  // For an embedding both are transposed: its row v gets B (column v of A).
  void add_embedding(const AdapterPair& pair, const NamedShape& ours) {
    if (is_tied()) {
      throw DataError("{}: has an adapter of {} alone, but the model's head is tied to it",
                      adapter_.path(), printable(pair.module));
    }
    const std::int64_t rows = ours.shape[0], columns = ours.shape[1], rank = pair.rank;
    require_shape(pair.a, {rank, rows});
    require_shape(pair.b, {columns, rank});
    const std::vector<float> a = adapter_.read(pair.a), b = adapter_.read(pair.b);
    MatrixDelta delta{0, rows, columns, rank, adapter_.scale_of(pair), {}, {}};
    for (std::int64_t k = 0; k < rank; ++k) {
      for (std::int64_t c = 0; c < columns; ++c) {
        delta.a.push_back(b[static_cast<std::size_t>(c * rank + k)]);
      }
    }
    for (std::int64_t v = 0; v < rows; ++v) {
      for (std::int64_t k = 0; k < rank; ++k) {
        delta.b.push_back(a[static_cast<std::size_t>(k * rows + v)]);
      }
    }
    overlay_->deltas[ours.name].push_back(std::move(delta));
  }

  void require_shape(const std::string& tensor, const std::vector<std::int64_t>& expected) const {
    if (adapter_.shape_of(tensor) == expected) return;
    throw DataError("{}: tensor \"{}\" is {}; the model's would be {}", adapter_.path(),
                    printable(tensor), shape_text(adapter_.shape_of(tensor)), shape_text(expected));
  }

  // As files call it.
  std::string name_in_files(const std::string& name) const {
    for (const auto modules : family_.modules) {
      for (const Module& module : modules) {
        if (module.in_memory.empty()) continue;
        const std::string prefix = std::string(module.in_memory) + ".";
        if (name.starts_with(prefix))
          return std::string(module.theirs) + "." + name.substr(prefix.size());
      }
    }
    return name;
  }

  void add(const WholeTensor& tensor) {
    const std::string name = name_in_files(tensor.name);
    const auto known = std::ranges::find(map_.theirs, name, &NamedShape::name);
    const bool is_head = is_tied() && name == head_name();
    if (known == map_.theirs.end() && !is_head) {
      throw DataError("{}: holds {}, which the model lacks", adapter_.path(),
                      printable(tensor.name));
    }
    if (!is_head) require_shape(tensor.in_file, known->shape);
    std::vector<float> values = adapter_.read(tensor.in_file);
    const auto [at, is_new] = overlay_->replaced.emplace(name, std::move(values));
    if (is_new || at->second == adapter_.read(tensor.in_file)) return;
    throw DataError("{}: holds {} twice, with different values", adapter_.path(), printable(name));
  }

  std::string head_name() const {
    const auto rows = modules_of(family_, "head");
    return rows.empty() ? "" : std::string(rows[0]->theirs) + ".weight";
  }
  std::string embedding_name() const {
    const auto rows = modules_of(family_, "embedding.token");
    return std::string(family_.prefix) + std::string(rows.at(0)->theirs) + ".weight";
  }

  // PEFT stores both; they are one matrix here, so they must be equal.
  void settle_tied_head() {
    auto& replaced = overlay_->replaced;
    const auto head = replaced.find(head_name());
    const auto embedding = replaced.find(embedding_name());
    if (head == replaced.end() && embedding == replaced.end()) return;
    const bool both = head != replaced.end() && embedding != replaced.end();
    if (!both || head->second != embedding->second) {
      throw DataError(
          "{}: trains the embedding and the head separately, but the model's head is tied to its "
          "embedding; merge the adapter into an untied model with PEFT",
          adapter_.path());
    }
    replaced.erase(head);
  }

  void note_whole_parameters() {
    for (std::size_t i = 0; i < map_.ours.size(); ++i) {
      const bool is_whole = std::ranges::all_of(map_.links, [&](const Link& link) {
        return link.ours != static_cast<int>(i) ||
               overlay_->replaced.contains(map_.theirs[static_cast<std::size_t>(link.theirs)].name);
      });
      if (is_whole) overlay_->replaced_ours.insert(map_.ours[i].name);
    }
  }

  const AdapterFolder& adapter_;
  const Family& family_;
  const ModelWeights& model_;
  std::vector<MatrixModule> modules_;
  WeightMap map_;
  std::shared_ptr<Overlay> overlay_;
};

}  // namespace

float rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (nearest == value || !std::isfinite(nearest)) return nearest;
  if ((std::bit_cast<std::uint32_t>(nearest) & 1u) != 0) return nearest;
  return std::nextafterf(nearest, static_cast<double>(nearest) < value
                                      ? std::numeric_limits<float>::infinity()
                                      : -std::numeric_limits<float>::infinity());
}

void MatrixDelta::add_to(float* values, std::int64_t first, std::int64_t count,
                         bool rounds_to_odd) const {
  const std::int64_t begin = std::max(first, first_row * columns);
  const std::int64_t end = std::min(first + count, (first_row + rows) * columns);
  for (std::int64_t i = begin; i < end; ++i) {
    const float* of_row = b.data() + (i / columns - first_row) * rank;
    const float* of_column = a.data() + i % columns;
    double sum = 0.0;
    for (std::int64_t k = 0; k < rank; ++k) {
      sum += static_cast<double>(of_row[k]) * static_cast<double>(of_column[k * columns]);
    }
    const double merged = static_cast<double>(values[i - first]) + scale * sum;
    values[i - first] = rounds_to_odd ? rounded_to_odd(merged) : static_cast<float>(merged);
  }
}

std::shared_ptr<Overlay> overlay_of(const AdapterFolder& adapter, const Family& family,
                                    const ModelWeights& model) {
  return OverlayBuilder(adapter, family, model).build();
}

}  // namespace sherd::huggingface
