#include "kernels/device_common/matmul_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>

#include "core/small_file.h"
#include "kernels/libraries.h"

namespace sherd::kernels::device_common {
namespace {

constexpr std::string_view kArrow = " -> ";
constexpr std::array<std::string_view, 5> kEpilogues = {"none", "bias", "gelu", "gelu_bias",
                                                        "gelu_slope"};
constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kF16};

// What a field's text may be, by number.
using Names = std::vector<std::string_view>;

struct Field {
  std::string_view name;
  Names names;  ///< empty: a number
  std::int64_t value = 0;
};

Names names_of_types() {
  Names names;
  for (const DType type : kTypes) names.push_back(name_of(type));
  return names;
}

std::vector<Field> fields_of(const MatmulKey& key) {
  const Names sides = {"n", "t"}, types = names_of_types();
  const auto type = [](DType dtype) { return std::ranges::find(kTypes, dtype) - kTypes.begin(); };
  return {
      {"m", {}, key.m},
      {"n", {}, key.n},
      {"k", {}, key.k},
      {"a", sides, key.transpose_a},
      {"b", sides, key.transpose_b},
      {"in", types, type(key.in)},
      {"out", types, type(key.out)},
      {"epilogue", {kEpilogues.begin(), kEpilogues.end()}, static_cast<std::int64_t>(key.epilogue)},
      {"add", {}, key.add_to_output},
      {"tf32", {}, key.allow_tf32},
      {"deterministic", {}, key.deterministic},
      {"alignment", {}, key.alignment},
      {"workspace", {}, key.workspace_bytes}};
}

MatmulKey key_of(const std::vector<Field>& f) {
  return {.m = f[0].value,
          .n = f[1].value,
          .k = f[2].value,
          .transpose_a = f[3].value != 0,
          .transpose_b = f[4].value != 0,
          .in = kTypes[static_cast<std::size_t>(f[5].value)],
          .out = kTypes[static_cast<std::size_t>(f[6].value)],
          .epilogue = static_cast<MatmulEpilogue>(f[7].value),
          .add_to_output = f[8].value != 0,
          .allow_tf32 = f[9].value != 0,
          .deterministic = f[10].value != 0,
          .alignment = static_cast<int>(f[11].value),
          .workspace_bytes = f[12].value};
}

std::vector<Field> fields_of(const MatmulAlgorithm& x) {
  return {{"id", {}, x.id},
          {"tile", {}, x.tile},
          {"split", {}, x.split_k},
          {"reduction", {}, x.reduction},
          {"swizzle", {}, x.swizzle},
          {"custom", {}, x.custom},
          {"stages", {}, x.stages},
          {"inner", {}, x.inner_shape},
          {"cluster", {}, x.cluster_shape}};
}

MatmulAlgorithm algorithm_of(const std::vector<Field>& f) {
  return {f[0].value, f[1].value, f[2].value, f[3].value, f[4].value,
          f[5].value, f[6].value, f[7].value, f[8].value};
}

std::string joined(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) {
    text += fmt::format("{}{}=", text.empty() ? "" : " ", field.name);
    text += field.names.empty() ? fmt::format("{}", field.value)
                                : std::string(field.names[static_cast<std::size_t>(field.value)]);
  }
  return text;
}

std::int64_t value_of(const Field& field, const std::string& text) {
  std::int64_t value = -1;
  if (field.names.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) value = -1;
  } else if (const auto found = std::ranges::find(field.names, text); found != field.names.end()) {
    value = found - field.names.begin();
  }
  if (value < 0) throw DataError("\"{}={}\" can't be read", field.name, text);
  return value;
}

// All of them, in their order.
std::vector<Field> parsed(std::vector<Field> fields, const std::string& text) {
  std::istringstream words(text);
  std::string word;
  for (Field& field : fields) {
    const std::string begin = std::string(field.name) + "=";
    if (!(words >> word) || !word.starts_with(begin)) {
      throw DataError("found \"{}\" where {}... was expected", word, begin);
    }
    field.value = value_of(field, word.substr(begin.size()));
  }
  if (words >> word) throw DataError("\"{}\" is one word too many", word);
  return fields;
}

MatmulRow row_of(const std::string& line) {
  const std::string text = line.substr(0, line.find('#'));
  const std::size_t arrow = text.find(kArrow);
  if (arrow == std::string::npos) throw DataError("a row needs \"->\"");
  MatmulRow row{
      matmul_key_of(text.substr(0, arrow)),
      algorithm_of(parsed(fields_of(MatmulAlgorithm{}), text.substr(arrow + kArrow.size())))};
  const std::int64_t allowed = allowed_reductions(row.key), scheme = row.algorithm.reduction;
  const bool split = row.algorithm.split_k > 1 || scheme != 0;
  if (split && allowed != -1 && (scheme & ~allowed) != 0) {
    throw DataError("reduction={} isn't one that this matmul allows", scheme);
  }
  if (split && allowed != -1 && scheme == 0) {
    throw DataError("split={} without a reduction", row.algorithm.split_k);
  }
  return row;
}

// Calls `section` with each "[...]" and `row` with each row's line; all lines are counted from 1.
template <class Section, class Row>
void for_each_line(const std::string& text, const Section& section, const Row& row) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with('[') && line.ends_with(']')) {
      section(line.substr(1, line.size() - 2));
    } else {
      row(number, line);
    }
  }
}

}  // namespace

std::string MatmulPlace::text() const {
  return fmt::format("{}, cuBLASLt {}", gpu, cublas);
}

std::vector<MatmulRow> row_worth_writing(const MatmulKey& key,
                                         const std::vector<TimedAlgorithm>& timed,
                                         double worth_it) {
  const auto fastest = std::ranges::min_element(timed, {}, &TimedAlgorithm::seconds);
  if (timed.empty() || fastest->seconds >= worth_it * timed.front().seconds) return {};
  return {
      {key, fastest->algorithm,
       fmt::format("{:.1f} us, not {:.1f}", 1e6 * fastest->seconds, 1e6 * timed.front().seconds)}};
}

std::string text_of(const MatmulKey& key) {
  return joined(fields_of(key));
}

MatmulKey matmul_key_of(const std::string& text) {
  return key_of(parsed(fields_of(MatmulKey{}), text));
}

std::int64_t allowed_reductions(const MatmulKey& key) {
  if (key.out != DType::kF32 && has_bias(key.epilogue)) return 0;
  return key.deterministic ? kReductionInF32 : -1;
}

MatmulTable::MatmulTable(const std::string& text, const std::string& file, const MatmulPlace& place)
    : file_(file) {
  std::optional<bool> here;
  for_each_line(
      text, [&](const std::string& section) { here = section == place.text(); },
      [&](int number, const std::string& line) {
        try {
          if (!here) throw DataError("no line names a GPU and a cuBLASLt before the first row");
          const MatmulRow row = row_of(line);
          if (!*here) {
            ++num_elsewhere_;
          } else if (!rows_.emplace(row.key, row.algorithm).second) {
            throw DataError("this matmul has a row already");
          }
        } catch (const DataError& error) {
          throw DataError("{}:{}: {}. `./dev gpu-check --tune` writes the file again.", file,
                          number, error.what());
        }
      });
}

const MatmulAlgorithm* MatmulTable::find(const MatmulKey& key) const {
  const auto found = rows_.find(key);
  return found == rows_.end() ? nullptr : &found->second;
}

std::string MatmulTable::text() const {
  if (file_.empty()) return "";
  std::string text = fmt::format("{} measured matmul algorithm{} of {}", rows_.size(),
                                 rows_.size() == 1 ? "" : "s", file_);
  if (num_elsewhere_ > 0) {
    text += fmt::format(" ({} of other GPUs or cuBLASLt versions ignored)", num_elsewhere_);
  }
  return text;
}

std::string with_rows(const std::string& text, const MatmulPlace& place,
                      const std::vector<MatmulRow>& rows) {
  std::string out =
      "# Algorithms of cuBLASLt, as measured: kernels/device_common/matmul_table.h.\n";
  bool others = false;
  for_each_line(
      text,
      [&](const std::string& section) {
        others = section != place.text();
        if (others) out += fmt::format("\n[{}]\n", section);
      },
      [&](int, const std::string& line) {
        if (others) out += line + "\n";
      });
  out += fmt::format("\n[{}]\n", place.text());
  for (const MatmulRow& row : rows) {
    out += text_of(row.key) + std::string(kArrow) + joined(fields_of(row.algorithm));
    if (!row.remark.empty()) out += "  # " + row.remark;
    out += "\n";
  }
  return out;
}

std::string matmul_table_file() {
  namespace fs = std::filesystem;
  if (const char* file = std::getenv("SHERD_MATMUL_TABLE")) {
    if (*file != '\0' && !fs::exists(file)) {
      throw UsageError(
          "SHERD_MATMUL_TABLE is {}, which doesn't exist; `./dev gpu-check --tune` makes such a "
          "file.",
          file);
    }
    return file;
  }
  std::error_code error;
  const fs::path beside =
      fs::read_symlink("/proc/self/exe", error).parent_path() / "matmul_algorithms.txt";
  return !error && fs::exists(beside) ? beside.string() : "";
}

std::string text_of_table(const std::string& file) {
  constexpr std::int64_t kMostBytes = 16 << 20;
  return read_small_file(file, kMostBytes);
}

}  // namespace sherd::kernels::device_common

namespace sherd::kernels {

// Equal programs hash alike.
std::uint64_t matmul_table_fingerprint() {
  const std::string file = device_common::matmul_table_file();
  return file.empty() ? 0 : std::hash<std::string>()(device_common::text_of_table(file)) | 1;
}

}  // namespace sherd::kernels
