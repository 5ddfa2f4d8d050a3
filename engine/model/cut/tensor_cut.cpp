#include "engine/model/cut/tensor_cut.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "engine/model/adapter.h"
#include "engine/model/parameters.h"

namespace sherd::model {
namespace {

std::int64_t rows_per_rank(const ModelShape& whole, int degree) {
  if (whole.part.has_canonical_sums()) return kSumGroups / degree * whole.vocabulary_group();
  return (whole.vocab_size + degree - 1) / degree;
}

// Of all kinds of layers: of dense MLPs, experts and shared experts.
std::vector<std::int64_t> ffn_widths(const ModelShape& whole) {
  std::vector<std::int64_t> widths;
  bool all_have_experts = !whole.layer_kinds.empty();
  for (const LayerKind& kind : whole.layer_kinds) {
    if (kind.ffn_width > 0) widths.push_back(kind.ffn_width);
    all_have_experts &= kind.mlp == MlpKind::kExperts;
  }
  if (!all_have_experts) widths.push_back(whole.ffn_width);
  if (whole.moe.active()) {
    widths.push_back(whole.moe.ffn_width);
    if (whole.moe.shared_width > 0) widths.push_back(whole.moe.shared_width);
  }
  return widths;
}

// "feed-forward width 40", and those of experts.
std::string widths_text(const ModelShape& whole) {
  std::string text = fmt::format("feed-forward width {}", whole.ffn_width);
  if (!whole.moe.active()) return text;
  text += fmt::format(", experts of width {}", whole.moe.ffn_width);
  if (whole.moe.shared_width == 0) return text;
  return text + fmt::format(", a shared one of {}", whole.moe.shared_width);
}

bool all_divisible(const std::vector<std::int64_t>& widths, std::int64_t by) {
  return std::ranges::all_of(widths, [by](std::int64_t width) { return width % by == 0; });
}

bool divides_extent(int degree, const ModelShape& whole) {
  const std::int64_t G = whole.kv_heads;
  if (whole.part.has_canonical_sums() && kSumGroups % degree != 0) return false;
  return whole.query_heads % degree == 0 && (G % degree == 0 || degree % G == 0) &&
         all_divisible(ffn_widths(whole), degree) &&
         (degree - 1) * rows_per_rank(whole, degree) < whole.vocab_size;
}

// What eight groups are made of must be in eighths.
void check_groups(const ModelShape& whole) {
  const std::int64_t K = whole.head_width();
  const auto check = [](const char* what, std::int64_t width) {
    if (width % kSumGroups == 0) return;
    throw UsageError(
        "canonical sums have {} groups, and the width of {}, {}, can't be divided by {}; "
        "{} would do.",
        kSumGroups, what, width, kSumGroups, (width / kSumGroups + 1) * kSumGroups);
  };
  check("all query heads", whole.query_heads * K);
  check("all key heads", whole.kv_heads * K);
  for (const std::int64_t width : ffn_widths(whole)) check("the feed-forward layer", width);
}

void check_degree(const ModelShape& whole, int degree) {
  if (divides_extent(degree, whole)) return;
  int nearest = degree - 1;
  while (!divides_extent(nearest, whole)) --nearest;
  if (whole.part.has_canonical_sums()) {
    throw UsageError(
        "{} tensor ranks can't share a model of {} query heads, {} key/value heads, {} and {} "
        "tokens with canonical sums: the number must be 1, 2, 4 or 8, divide heads "
        "and width, and leave each rank tokens. {} would do.",
        degree, whole.query_heads, whole.kv_heads, widths_text(whole), whole.vocab_size, nearest);
  }
  throw UsageError(
      "{} tensor ranks can't share a model of {} query heads, {} key/value heads, {} and {} "
      "tokens: the number must divide heads and width, divide the key/value heads or be a multiple "
      "of them, and leave each rank tokens. {} would do.",
      degree, whole.query_heads, whole.kv_heads, widths_text(whole), whole.vocab_size, nearest);
}

// Ranks hold equal pieces, one after another; where there are fewer pieces than ranks, neighbours
// hold copies of one.
struct Share {
  Share(std::int64_t whole, std::int64_t own, int degree, int rank) {
    const auto copies = static_cast<int>(degree * own / whole);
    first = rank / copies * own;
    counts = rank % copies == 0;
  }
  std::int64_t first;
  bool counts;
};

bool is_over_vocabulary(const std::string& name) {
  return name == "embedding.token.weight" || name == "head.weight";
}

// Rows of the matrices that are stacked in a parameter, or in the one whose bias or adapter it is.
std::vector<std::int64_t> stacked_rows(const ModelShape& shape, const UnitSpec& unit,
                                       std::size_t p) {
  const ParameterSpec& parameter = unit.parameters[p];
  if (parameter.name.ends_with(".lora_b")) {
    for (const Site& site : block_sites(shape, unit.id.layer)) {
      const std::string whole = site.id == SiteId::kUp && shape.gated() ? "mlp.gate_up" : site.name;
      const bool is_all = module_of(parameter.name) == whole && !site.matrix_rows.empty();
      if (is_all) return site.matrix_rows;
    }
    return {parameter.shape[0]};
  }
  const bool is_bias = parameter.name.ends_with(".bias");
  const auto& rows = unit.parameters[is_bias ? p - 1 : p].matrix_rows;
  return rows.empty() ? std::vector{parameter.shape[0]} : rows;
}

ParameterCut cut_of(const ModelShape& whole_shape, const ModelShape& own_shape,
                    const UnitSpec& whole_unit, const UnitSpec& own_unit, std::size_t p) {
  const TensorPart& part = own_shape.part;
  const ParameterSpec &whole = whole_unit.parameters[p], &own = own_unit.parameters[p];
  ParameterCut cut{.name = whole.name, .shape = whole.shape, .matrix_rows = whole.matrix_rows};
  const std::int64_t columns = cut.columns(), own_columns = own.numel() / own.shape[0];
  const Share by_column(columns, own_columns, part.degree, part.rank);
  if (own_columns < columns) cut.cut = Cut::kColumns;
  if (own.shape[0] < whole.shape[0]) cut.cut = Cut::kRows;
  if (is_over_vocabulary(whole.name)) {
    cut.held = {{{part.first_token, own.shape[0], 0, columns}}};
    return cut;
  }
  const auto all_rows = stacked_rows(whole_shape, whole_unit, p);
  const auto own_rows = stacked_rows(own_shape, own_unit, p);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < all_rows.size(); ++i) {
    const Share by_row(all_rows[i], own_rows[i], part.degree, part.rank);
    const bool counts = own_columns < columns ? by_column.counts : by_row.counts;
    cut.held.push_back(
        {{before + by_row.first, own_rows[i], by_column.first, own_columns}, counts});
    before += all_rows[i];
  }
  return cut;
}

// Ranks that share tokens have whole groups of them.
void check_shared_tokens(const ModelShape& whole) {
  if (!whole.part.has_canonical_sums() || !whole.part.sequence_parallel) return;
  check_sequence_groups(whole);
  if (whole.sequences == 1) return;
  throw UsageError(
      "with canonical sums, sequence parallelism needs micro-batches of one sequence, not of {}; "
      "use more micro-batches instead.",
      whole.sequences);
}

}  // namespace

void check_sequence_groups(const ModelShape& whole) {
  if (!whole.part.has_canonical_sums() || whole.seq_length % kSumGroups == 0) return;
  throw UsageError(
      "canonical sums over tokens have {} groups, and ranks can't share sequences of {} tokens in "
      "whole groups; {} would do.",
      kSumGroups, whole.seq_length, (whole.seq_length / kSumGroups + 1) * kSumGroups);
}

void sum_canonically(ModelShape& whole) {
  whole.part.sum_groups = kSumGroups;
  // The query heads of a key/value head, where several ranks may have them.
  const std::int64_t heads = whole.query_heads / whole.kv_heads;
  int groups = kSumGroups % whole.kv_heads == 0 ? kSumGroups / static_cast<int>(whole.kv_heads) : 1;
  while (heads % groups != 0) groups /= 2;
  whole.part.kv_sum_groups = groups;
}

ModelShape tensor_part(const ModelShape& whole, int degree, int rank) {
  SHERD_CHECK(degree >= 1 && rank >= 0 && rank < degree && !whole.part.is_cut(),
              "tensor rank {} of {}", rank, degree);
  if (whole.part.has_canonical_sums()) check_groups(whole);
  if (degree == 1) return whole;
  check_degree(whole, degree);
  check_shared_tokens(whole);
  ModelShape own = whole;
  TensorPart& part = own.part;
  part.degree = degree;
  part.rank = rank;
  own.head_size = whole.head_width();
  own.query_heads = whole.query_heads / degree;
  part.all_query_heads = whole.query_heads;
  part.first_query_head = rank * own.query_heads;
  own.kv_heads = std::max<std::int64_t>(1, whole.kv_heads / degree);
  part.all_kv_heads = whole.kv_heads;
  part.kv_copies = static_cast<int>(degree * own.kv_heads / whole.kv_heads);
  part.kv_copy = rank % part.kv_copies;
  part.kv_sum_groups = std::max(1, whole.part.kv_sum_groups / part.kv_copies);
  own.ffn_width = whole.ffn_width / degree;
  for (LayerKind& kind : own.layer_kinds) kind.ffn_width /= degree;
  own.moe.ffn_width /= degree;
  own.moe.shared_width /= degree;
  const std::int64_t rows = rows_per_rank(whole, degree);
  part.sum_groups = whole.part.sum_groups / degree;
  part.all_tokens = whole.vocab_size;
  part.first_token = rank * rows;
  own.vocab_size = std::min(rows, whole.vocab_size - part.first_token);
  return own;
}

std::vector<std::vector<ParameterCut>> tensor_cut(const ModelShape& whole, int degree, int rank) {
  std::vector<UnitId> ids;
  for (const UnitSpec& unit : parameter_table(whole)) ids.push_back(unit.id);
  return tensor_cut(whole, degree, rank, ids);
}

std::vector<std::vector<ParameterCut>> tensor_cut(const ModelShape& whole, int degree, int rank,
                                                  std::span<const UnitId> ids) {
  const ModelShape own = tensor_part(whole, degree, rank);
  const std::vector<UnitSpec> all_units = parameter_table(whole, ids),
                              own_units = parameter_table(own, ids);
  std::vector<std::vector<ParameterCut>> cuts;
  for (std::size_t u = 0; u < all_units.size(); ++u) {
    std::vector<ParameterCut>& unit = cuts.emplace_back();
    for (std::size_t p = 0; p < all_units[u].parameters.size(); ++p) {
      unit.push_back(cut_of(whole, own, all_units[u], own_units[u], p));
    }
  }
  return cuts;
}

bool cuts_between_blocks(const ModelShape& whole, int degree) {
  if (degree == 1) return true;
  if (!divides_extent(degree, whole)) return false;
  const LatentShape& latent = whole.latent;
  return whole.width % kQuantisedBlock == 0 &&
         whole.attended_width() / degree % kQuantisedBlock == 0 &&
         latent.kv_rank % kQuantisedBlock == 0 && latent.query_rank % kQuantisedBlock == 0 &&
         all_divisible(ffn_widths(whole), degree * kQuantisedBlock);
}

bool is_summed_over_tensor_ranks(const ModelShape& whole, std::string_view parameter) {
  const std::string module = "." + std::string(parameter.substr(0, parameter.rfind('.')));
  const std::vector<Site> blocks = largest_sites(whole);
  const bool is_of_latents = std::ranges::any_of(blocks, [&](const Site& site) {
    return leads_to_latents(site.id) && module.ends_with("." + site.name);
  });
  if (is_of_latents) return true;
  if (is_adapter(parameter)) {  // its whole matrix
    const bool cuts_inputs = module.ends_with(".attention.output") || module.ends_with(".mlp.down");
    return parameter.ends_with(cuts_inputs ? ".lora_b" : ".lora_a");
  }
  std::vector<Site> sites = blocks;
  sites.push_back(final_norm_site(whole));
  return std::ranges::any_of(sites, [&](const Site& site) {
    if (site.weight != Site::Weight::kNorm || !module.ends_with("." + site.name)) return false;
    return site.on_residual ? whole.part.sequence_parallel : whole.has_norm_of_heads();
  });
}

}  // namespace sherd::model
