#include "engine/huggingface/weight_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace sherd::huggingface {
namespace {

// Consecutive rows of one head, in ours and in theirs.
struct Segment {
  std::int64_t ours, theirs, count;
  std::int64_t step = 1;  ///< between rows of theirs
};

std::vector<Segment> segments_of(std::int64_t width, std::int64_t rotated, bool interleaved) {
  const std::int64_t h = rotated / 2, half = width / 2;
  if (rotated == 0 || (rotated == width && !interleaved)) return {{0, 0, width}};
  const std::int64_t second = interleaved ? 1 : h, step = interleaved ? 2 : 1;
  return {{0, 0, h, step},
          {half, second, h, step},
          {h, rotated, half - h},
          {half + h, rotated + half - h, width - half - h}};
}

// Of `width` rows the last `rotated` are; theirs may be pairs of neighbours.
std::vector<Segment> segments_of_tail(std::int64_t width, std::int64_t rotated, bool interleaved) {
  const std::int64_t plain = width - rotated, h = rotated / 2;
  if (!interleaved) return {{0, 0, width}};
  return {{0, 0, plain}, {plain, plain, h, 2}, {plain + h, plain + 1, h, 2}};
}

struct Rows {
  std::int64_t first = 0, count = 0;  ///< of ours
};

// One parameter and the modules that hold its rows.
class ParameterLinks {
 public:
  ParameterLinks(const Family& family, const ModelWeights& model, WeightMap& map, int ours)
      : model_(model), map_(map), ours_(ours), interleaved_(family.interleaved_rotary) {
    const std::vector<std::int64_t>& shape = map.ours[static_cast<std::size_t>(ours)].shape;
    rows_ = shape[0];
    columns_ = shape.size() > 1 ? shape[1] : 1;
    is_vector_ = shape.size() == 1;
  }

  /// The tensor "MODULE.KIND" of theirs, or one for each head.
  void add(const Module& module, const std::string& name, const std::string& kind) {
    if (is_of_experts(module.part) && kind == "weight") return add_experts(module, name, kind);
    const bool stacks = model_.stacks_experts && !module.stacked.empty();
    if (kind == "bias" && module.part == Part::kPairedGateUp) return add_paired_bias(module, name);
    if (kind == "bias" && !module.bias.empty()) {
      std::vector<std::int64_t> shape = {rows_};
      if (module.bias_in_row) shape.insert(shape.begin(), 1);
      if (module.part == Part::kTurnedExperts) shape = {model_.experts, rows_ / model_.experts};
      add_theirs(other_name(module, name, stacks ? module.stacked_bias : module.bias),
                 std::move(shape));
      return plain(0, 0, rows_);
    }
    if (stacks) {  // a router
      add_theirs(other_name(module, name, module.stacked), {rows_, columns_});
      return plain(0, 0, rows_);
    }
    const Rows rows = rows_of(module.part);
    SHERD_CHECK(rows.count > 0 && rows.first + rows.count <= rows_, "rows of {}", name);
    if (module.part == Part::kEachHead) return add_each_head(module, name, kind);
    std::vector<std::int64_t> shape = {rows.count, columns_};
    if (is_vector_) shape.pop_back();
    if (module.part == Part::kHeadMatrix) {
      shape = {rows.count / model_.head_width, model_.head_width};
    }
    const bool turned = module.transposed && !is_vector_;
    if (turned) std::swap(shape[0], shape[1]);
    add_theirs(module.bare && kind == "weight" ? name : name + "." + kind, std::move(shape));
    if (turned) {
      link({rows.first * columns_, 0, {{rows.count, columns_, 1}, {columns_, 1, rows.count}}});
    } else {
      add_rows(module.part, rows);
    }
  }

 private:
  void add_theirs(std::string name, std::vector<std::int64_t> shape) {
    map_.theirs.push_back({std::move(name), std::move(shape)});
    theirs_ = static_cast<int>(map_.theirs.size()) - 1;
  }

  void add_each_head(const Module& module, const std::string& name, const std::string& kind) {
    const std::int64_t width = model_.head_width;
    for (std::int64_t head = 0; head < rows_ / width; ++head) {
      add_theirs(fmt::format("{}.{}.{}", name, with_number(module.each_head, head), kind), {width});
      add_heads(head * width, 0, 1, width, true);
    }
  }

  static bool is_of_experts(Part part) {
    return part >= Part::kExpertGate && part <= Part::kTurnedExperts;
  }

  // Ours are all experts' rows one after another; of a gated expert first those of its gate.
  void add_experts(const Module& module, const std::string& name, const std::string& kind) {
    if (module.part == Part::kPairedGateUp) return add_paired(name);
    if (module.part == Part::kTurnedGateUp || module.part == Part::kTurnedExperts) {
      return add_turned(name);
    }
    if (module.part == Part::kStackedGateUp || module.part == Part::kStackedDown) {
      return add_stack(name + "." + kind);
    }
    if (model_.stacks_experts && !module.stacked.empty()) {
      if (module.part != Part::kExpertUp) add_stack(other_name(module, name, module.stacked));
      return;
    }
    for (std::int64_t e = 0; e < model_.experts; ++e) {
      const auto [first, count] = rows_of_expert(module.part, rows_, model_.experts, e);
      add_theirs(fmt::format("{}.{}", with_number(name, e), kind), {count, columns_});
      plain(first, 0, count);
    }
  }

  // Gate and up take turns in theirs; ours are an expert's gate, then its up.
  void add_paired(const std::string& name) {
    const std::int64_t E = model_.experts, U = rows_ / E, F = U / 2, D = columns_;
    const bool upright = model_.upright_experts;
    add_theirs(name,
               upright ? std::vector<std::int64_t>{E, U, D} : std::vector<std::int64_t>{E, D, U});
    const std::int64_t row = upright ? D : 1, column = upright ? 1 : U;
    for (std::int64_t up = 0; up < 2; ++up) {
      link({up * F * D, up * row, {{E, U * D, U * D}, {F, D, 2 * row}, {D, 1, column}, {1, 1, 1}}});
    }
  }
  void add_paired_bias(const Module& module, const std::string& name) {
    const std::int64_t E = model_.experts, U = rows_ / E, F = U / 2;
    add_theirs(other_name(module, name, module.bias), {E, U});
    for (std::int64_t up = 0; up < 2; ++up) link({up * F, up, {{E, U, U}, {F, 1, 2}, {1, 1, 1}}});
  }
  void add_turned(const std::string& name) {
    const std::int64_t E = model_.experts, D = rows_ / E, F = columns_;
    const bool upright = model_.upright_experts;
    add_theirs(name,
               upright ? std::vector<std::int64_t>{E, D, F} : std::vector<std::int64_t>{E, F, D});
    if (upright) return plain(0, 0, rows_);
    link({0, 0, {{E, D * F, D * F}, {D, F, 1}, {F, 1, D}}});
  }

  void add_stack(std::string name) {
    add_theirs(std::move(name), {model_.experts, rows_ / model_.experts, columns_});
    plain(0, 0, rows_);
  }

  // "model.layers.3.mlp.experts.{}.gate_proj" says the number of the layer for a name of another
  // pattern.
  static std::string other_name(const Module& module, const std::string& name,
                                std::string_view other) {
    const std::string_view pattern = module.theirs;
    const std::size_t number =
        name.find(pattern.substr(0, pattern.find("{}"))) + pattern.find("{}");
    const std::size_t end = name.find('.', number);
    return name.substr(0, name.find(pattern.substr(0, pattern.find("{}")))) +
           with_number(other, std::stoll(name.substr(number, end - number)));
  }

  Rows rows_of(Part part) const {
    const std::int64_t query = model_.query_heads * model_.head_width;
    const std::int64_t key = model_.kv_heads * model_.head_width;
    switch (part) {
      case Part::kQuery:
        return {0, query};
      case Part::kKey:
        return {query, key};
      case Part::kValue:
        return {query + key, key};
      case Part::kGate:
        return {0, rows_ / 2};
      case Part::kUp:
        return {rows_ / 2, rows_ / 2};
      default:
        return {0, rows_};
    }
  }

  void add_rows(Part part, Rows rows) {
    const std::int64_t width = model_.head_width;
    const std::int64_t query = model_.query_heads * width, key = model_.kv_heads * width;
    switch (part) {
      case Part::kQuery:
      case Part::kKey:
      case Part::kHeads:
      case Part::kHeadMatrix:
        return add_heads(rows.first, 0, rows.count / width, width, true);
      case Part::kLatentQuery:
        return add_tails(rows.count / width, width);
      case Part::kLatentKey:
        return add_tails(1, rows.count);
      case Part::kQkv:
        add_heads(0, 0, model_.query_heads, width, true);
        add_heads(query, query, model_.kv_heads, width, true);
        return plain(query + key, query + key, key);
      case Part::kQkvByHead:
        for (std::int64_t kind = 0; kind < 3; ++kind) {
          add_heads(kind * query, kind * width, model_.query_heads, 3 * width, kind < 2);
        }
        return;
      default:
        return plain(rows.first, 0, rows.count);
    }
  }

  void plain(std::int64_t ours, std::int64_t theirs, std::int64_t rows) {
    link({ours * columns_, theirs * columns_, {{rows * columns_, 1, 1}}});
  }

  // Rows of `heads` heads; theirs are `step` rows apart.
  void add_heads(std::int64_t ours, std::int64_t theirs, std::int64_t heads, std::int64_t step,
                 bool turned) {
    const std::int64_t width = model_.head_width;
    const auto segments = turned ? segments_of(width, model_.rotary_width, interleaved_)
                                 : segments_of(width, 0, false);
    if (segments.size() == 1 && step == width) return plain(ours, theirs, heads * width);
    add_segments(segments, ours, theirs, heads, width, step);
  }

  void add_tails(std::int64_t heads, std::int64_t width) {
    add_segments(segments_of_tail(width, model_.rotated_tail, interleaved_), 0, 0, heads, width,
                 width);
  }

  void add_segments(const std::vector<Segment>& segments, std::int64_t ours, std::int64_t theirs,
                    std::int64_t heads, std::int64_t width, std::int64_t step) {
    for (const Segment& segment : segments) {
      if (segment.count == 0) continue;
      link({(ours + segment.ours) * columns_,
            (theirs + segment.theirs) * columns_,
            {{heads, width * columns_, step * columns_},
             {segment.count, columns_, segment.step * columns_},
             {columns_, 1, 1}}});
    }
  }

  void link(StridedBox box) { map_.links.push_back({ours_, theirs_, std::move(box)}); }

  const ModelWeights& model_;
  WeightMap& map_;
  int ours_, theirs_ = 0;
  bool interleaved_;
  std::int64_t rows_ = 0, columns_ = 0;
  bool is_vector_ = false;
};

// "block.3.norm1.weight" is the kind "weight" of module "block.{}.norm1" of block 3.
struct ParsedName {
  std::string module;
  std::int64_t number = -1;
  std::string kind;
};

ParsedName parse_name(const std::string& name) {
  constexpr std::string_view kBlock = "block.";
  ParsedName parsed;
  const std::size_t dot = name.rfind('.');
  SHERD_CHECK(dot != std::string::npos, "a parameter called {}", name);
  parsed.kind = name.substr(dot + 1);
  parsed.module = name.substr(0, dot);
  if (!parsed.module.starts_with(kBlock)) return parsed;
  const char* begin = parsed.module.data() + kBlock.size();
  const auto [end, error] =
      std::from_chars(begin, parsed.module.data() + parsed.module.size(), parsed.number);
  SHERD_CHECK(error == std::errc(), "a parameter called {}", name);
  const auto digits_end = static_cast<std::size_t>(end - parsed.module.data());
  parsed.module = std::string(kBlock) + "{}" + parsed.module.substr(digits_end);
  return parsed;
}

}  // namespace

std::int64_t NamedShape::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool ModelWeights::has_experts(std::int64_t layer) const {
  const std::string router = fmt::format("block.{}.moe.router.weight", layer);
  return std::ranges::find(parameters, router, &NamedShape::name) != parameters.end();
}

std::vector<const Module*> modules_of(const Family& family, const std::string& ours) {
  std::vector<const Module*> found = modules_of(family, ours, InLayers::kDense);
  for (const Module* module : modules_of(family, ours, InLayers::kWithExperts)) {
    if (std::ranges::find(found, module) == found.end()) found.push_back(module);
  }
  return found;
}

std::vector<const Module*> modules_of(const Family& family, const std::string& ours,
                                      InLayers layers) {
  std::vector<const Module*> found;
  for (const std::span<const Module> rows : family.modules) {
    for (const Module& row : rows) {
      if (row.ours != ours) continue;
      if (row.layers != InLayers::kAll && row.layers != layers) continue;
      found.push_back(&row);
      const bool is_part = row.part == Part::kQuery || row.part == Part::kKey ||
                           row.part == Part::kValue || row.part == Part::kGate ||
                           row.part == Part::kUp || row.part == Part::kExpertGate ||
                           row.part == Part::kExpertUp;
      if (!is_part) return found;
    }
  }
  return found;
}

std::string with_number(std::string_view pattern, std::int64_t number) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  return fmt::format("{}{}{}", pattern.substr(0, at), number, pattern.substr(at + 2));
}

std::vector<StridedBox> boxes_of(const Family& family, const ModelWeights& model,
                                 const NamedShape& ours, const Module& module,
                                 std::vector<std::int64_t>& theirs) {
  WeightMap map;
  map.ours = {ours};
  Module upright = module;
  upright.transposed = false;
  ParameterLinks(family, model, map, 0).add(upright, "", "");
  theirs = map.theirs[0].shape;
  std::vector<StridedBox> boxes;
  for (Link& link : map.links) boxes.push_back(std::move(link.box));
  return boxes;
}

WeightMap weight_map(const Family& family, const ModelWeights& model, bool with_prefix) {
  WeightMap map;
  map.ours = model.parameters;
  for (std::size_t i = 0; i < map.ours.size(); ++i) {
    const ParsedName name = parse_name(map.ours[i].name);
    const std::vector<const Module*> modules =
        modules_of(family, name.module,
                   model.has_experts(name.number) ? InLayers::kWithExperts : InLayers::kDense);
    if (modules.empty()) {
      throw UsageError("{}: models of type {} have no such tensor", map.ours[i].name,
                       family.model_type);
    }
    ParameterLinks links(family, model, map, static_cast<int>(i));
    for (const Module* module : modules) {
      const bool prefixed = with_prefix && !module->outside_prefix;
      links.add(*module,
                fmt::format("{}{}", prefixed ? family.prefix : "",
                            with_number(module->theirs, name.number)),
                name.kind);
    }
  }
  return map;
}

bool is_of_one_expert(Part part) {
  return part == Part::kExpertGate || part == Part::kExpertUp || part == Part::kExpertDown;
}

ExpertRows rows_of_expert(Part part, std::int64_t rows, std::int64_t experts, std::int64_t expert) {
  const std::int64_t own = rows / experts, count = part == Part::kExpertDown ? own : own / 2;
  return {expert * own + (part == Part::kExpertUp ? count : 0), count};
}

std::vector<MatrixModule> matrices_of(const Family& family, const ModelWeights& model) {
  std::vector<MatrixModule> matrices;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    if (model.parameters[i].shape.size() != 2) continue;
    const ParsedName name = parse_name(model.parameters[i].name);
    const InLayers layers =
        model.has_experts(name.number) ? InLayers::kWithExperts : InLayers::kDense;
    for (const Module* module : modules_of(family, name.module, layers)) {
      const std::string theirs = fmt::format("{}{}", module->outside_prefix ? "" : family.prefix,
                                             with_number(module->theirs, name.number));
      const bool of_one = is_of_one_expert(module->part);
      for (std::int64_t e = of_one ? 0 : -1; e < (of_one ? model.experts : 0); ++e) {
        matrices.push_back(
            {of_one ? with_number(theirs, e) : theirs, module, static_cast<int>(i), e});
      }
    }
  }
  return matrices;
}

WeightMap map_of_part(WeightMap whole, const std::vector<NamedShape>& ours) {
  WeightMap map{ours, std::move(whole.theirs), {}};
  for (Link& link : whole.links) {
    const std::string& name = whole.ours[static_cast<std::size_t>(link.ours)].name;
    const auto found = std::ranges::find(ours, name, &NamedShape::name);
    if (found == ours.end()) continue;
    map.links.push_back({static_cast<int>(found - ours.begin()), link.theirs, std::move(link.box)});
  }
  return map;
}

}  // namespace sherd::huggingface
