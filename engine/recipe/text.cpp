#include "engine/recipe/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/recipe/fields.h"
#include "engine/recipe/items.h"
#include "engine/recipe/uses.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

constexpr std::size_t kColumns = 100;

std::string fallback_text(const Fallback& fallback) {
  switch (fallback.kind) {
    case Fallback::Kind::kRequired:
      return "required";
    case Fallback::Kind::kValue:
    case Fallback::Kind::kDerived:
      break;
  }
  return std::string(fallback.text);
}

std::string help_of(const Field& field) {
  const Use* const use = use_of(field.key);
  return std::string(field.help) + (use ? fmt::format(" Used {}.", use->when) : "");
}

std::string type_and_range(const Field& field) {
  const std::string range = field.range.text();
  return range.empty() ? field.type() : fmt::format("{}, {}", field.type(), range);
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t hanging_indent) {
  std::string out;
  std::size_t column = kColumns;  // as if the line before were full
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column + 1 + word.size() > kColumns) {
      column = out.empty() ? indent : hanging_indent;
      if (!out.empty()) out += '\n';
      out.append(column, ' ');
    } else {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  out += '\n';
  return out;
}

/// A cell of a Markdown table: a bare | would end it.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

/// The table of a list's items; "" if the field isn't a list of blocks.
std::string item_table(const Field& field) {
  const std::vector<Field> rows = item_rows(field);
  if (rows.empty()) return "";
  std::string out = fmt::format("\nKeys of an item of `{}`:\n\n", field.name());
  out += "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const Field& row : rows) {
    const std::string fallback = fallback_text(row.fallback);
    const bool is_value = row.fallback.kind == Fallback::Kind::kValue;
    out += fmt::format("| `{}` | {} | {} | {} |\n", row.key, cell(type_and_range(row)),
                       is_value ? fmt::format("`{}`", fallback) : cell(fallback), cell(row.help));
  }
  return out;
}

constexpr std::string_view kMarkdownHead = R"(# Recipes

<!-- Printed by `sherd recipe --markdown` from the field table in engine/recipe/fields.cpp; a test
     compares the two. Change the table, then run ./dev docs. -->

A recipe is one YAML file that describes one run completely: blocks of keys, as below. Unknown keys
are errors. A key without a default is required; a default in words follows from other keys.

- `--set block.key=value` overrides a key, `--ranks N` sets
  `parallelism.data_parallel_shard_degree`. With `--set`, text is used unchanged unless it starts
  with a quote; anything else is a YAML value: `--set optimizer.betas='[0.9, 0.99]'`.
- Whole numbers may be written `1000`, `1e3` or `1000.0`.
- `sherd recipe RECIPE` prints every value with its origin: the recipe's line, `--set`, `--ranks`,
  `default` or `derived`. The output is itself a recipe that gives the same run.
- All errors of a recipe are printed at once, one line each.
- Some keys need others, and say "Used with ...". If a recipe sets one that has no effect, the run says so.

## Resuming with another recipe

A resumed run compares its recipe with the checkpoint's, key by key. If they differ:

- **must match**: the run is refused, since it would be another run. The message names the key and
  both values.
- **may change**: the run uses the recipe's value, and prints both.
- **free**: the key doesn't affect what is trained; nothing is printed.

The tokens must match too. Their fingerprint covers the content of the files (not their names), how
they are split and joined, the width of a token (`data.token_bytes`), and the tokenizer of
`data.format: text`.

[reproducibility.md](reproducibility.md) says which keys affect the last digits of results.
)";

}  // namespace

std::string recipe_help() {
  std::string out;
  for (const Block& block : recipe_blocks()) {
    out += fmt::format("{}{}:  {}\n", out.empty() ? "" : "\n", block.name, block.help);
    for (const Field& field : recipe_fields()) {
      if (field.block() != block.name) continue;
      const char* label = field.fallback.kind == Fallback::Kind::kRequired ? "" : "default: ";
      out += wrapped(fmt::format("{}  ({}; {}{})", field.name(), type_and_range(field), label,
                                 fallback_text(field.fallback)),
                     2, 10);
      out += wrapped(help_of(field), 6, 6);
      for (const Field& row : item_rows(field)) {
        out +=
            wrapped(fmt::format("{}  ({}; {}{})  {}", row.key, type_and_range(row),
                                row.fallback.kind == Fallback::Kind::kRequired ? "" : "default: ",
                                fallback_text(row.fallback), row.help),
                    6, 10);
      }
    }
  }
  return out;
}

std::string recipe_markdown() {
  std::string out(kMarkdownHead);
  for (const Block& block : recipe_blocks()) {
    out += fmt::format("\n## {}\n\n{}\n\n", block.name, block.help);
    out += "| key | type | default | on resume | meaning |\n|---|---|---|---|---|\n";
    for (const Field& field : recipe_fields()) {
      if (field.block() != block.name) continue;
      const std::string fallback = fallback_text(field.fallback);
      const bool is_value = field.fallback.kind == Fallback::Kind::kValue;
      out +=
          fmt::format("| `{}` | {} | {} | {} | {} |\n", field.name(), cell(type_and_range(field)),
                      is_value ? fmt::format("`{}`", fallback) : cell(fallback),
                      field.resume_text(), cell(help_of(field)));
    }
    for (const Field& field : recipe_fields()) {
      if (field.block() == block.name) out += item_table(field);
    }
  }
  return out;
}

std::string ResolvedRecipe::yaml() const {
  struct Line {
    std::string text, origin;
  };
  std::vector<Line> lines;
  std::size_t widest = 0;
  for (std::size_t row = 0; row < recipe_fields().size(); ++row) {
    const Field& field = recipe_fields()[row];
    const bool opens = row == 0 || recipe_fields()[row - 1].block() != field.block();
    if (opens) lines.push_back({fmt::format("{}:", field.block()), ""});
    const Origin& origin = origins.at(row);
    if (origin.kind == Origin::Kind::kNotYet) {
      lines.push_back({fmt::format("  # {}: {}", field.name(), origin.text), ""});
      continue;
    }
    lines.push_back(
        {fmt::format("  {}: {}", field.name(), format_value(field, values)), origin.text});
    if (lines.back().text.size() <= kColumns / 2)
      widest = std::max(widest, lines.back().text.size());
  }
  std::string out;
  for (const Line& line : lines) {
    out += line.origin.empty() ? line.text + '\n'
                               : fmt::format("{:<{}}  # {}\n", line.text, widest, line.origin);
  }
  return out;
}

}  // namespace sherd::engine
