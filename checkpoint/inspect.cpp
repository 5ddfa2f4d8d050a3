#include "checkpoint/inspect.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/store/block_reader.h"
#include "core/error.h"
#include "core/shape_text.h"

namespace sherd::checkpoint {
namespace {

using nlohmann::json;
using sharding::StateTensor;

std::string size_text(std::int64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  auto size = static_cast<double>(bytes);
  int unit = 0;
  for (; size >= 1024 && unit < 4; ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, units[unit]);
}

std::int64_t state_bytes(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const ShardInfo& shard : manifest.shards) {
    for (const ShardDataset& dataset : shard.datasets) bytes += dataset.bytes();
  }
  return bytes;
}

std::int64_t file_bytes(const Manifest& manifest) {
  std::int64_t bytes = manifest.index_bytes;
  for (const ShardInfo& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

// A row per name and shape; kinds of a name that have the same shape share one.
struct Row {
  std::string name, shape, kinds;
};

std::vector<Row> rows_of(const Manifest& manifest) {
  std::vector<Row> rows;
  std::map<std::pair<std::string, std::string>, std::size_t> seen;
  for (const StateTensor& tensor : manifest.tensors) {
    const std::string shape = shape_text(tensor.shape);
    const auto [place, added] = seen.emplace(std::pair{tensor.name, shape}, rows.size());
    if (added) rows.push_back({tensor.name, shape, ""});
    std::string& kinds = rows[place->second].kinds;
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", tensor.kind, name_of(tensor.dtype));
  }
  return rows;
}

}  // namespace

std::string inspect_table(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  std::string text = fmt::format("{}\n", checkpoint.path());
  const auto line = [&text](std::string_view label, const std::string& value) {
    text += fmt::format("  {:<10} {}\n", label, value);
  };
  line("step", std::to_string(manifest.step));
  line("save", manifest.save_uuid);
  line("written by",
       fmt::format("{} rank{}", checkpoint.num_shards(), checkpoint.num_shards() == 1 ? "" : "s"));
  line("state",
       fmt::format("{} in {} tensors", size_text(state_bytes(manifest)), manifest.tensors.size()));
  line("files", fmt::format("{} in {} shards and the index", size_text(file_bytes(manifest)),
                            checkpoint.num_shards()));
  const std::vector<Row> rows = rows_of(manifest);
  std::size_t name_width = 6, shape_width = 5;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width, row.shape.size());
  }
  text += fmt::format("\n{:<{}}  {:<{}}  kinds\n", "tensor", name_width, "shape", shape_width);
  for (const Row& row : rows) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", row.name, name_width, row.shape, shape_width,
                        row.kinds);
  }
  if (!manifest.global->empty()) text += "\nglobal\n";
  for (const auto& [key, value] : manifest.global->items()) {
    text += fmt::format("  {} = {}\n", printable(key), printable(value.dump(-1, ' ', true)));
  }
  return text;
}

std::string inspect_json(const Checkpoint& checkpoint, bool digests) {
  const Manifest& manifest = checkpoint.manifest();
  json tensors = json::array();
  for (const StateTensor& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"kind", tensor.kind},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape}});
  }
  if (digests) {
    const std::vector<std::string> found = tensor_digests(checkpoint);
    for (std::size_t i = 0; i < found.size(); ++i) tensors[i]["digest"] = found[i];
  }
  json files = json::object();
  for (int shard = 0; shard < checkpoint.num_shards(); ++shard) {
    files[shard_name(shard, checkpoint.num_shards())] =
        manifest.shards[static_cast<std::size_t>(shard)].bytes;
  }
  files[kIndexName] = manifest.index_bytes;
  const json all = {{"path", checkpoint.path()},
                    {"format_version", format_version(manifest)},
                    {"step", manifest.step},
                    {"save_uuid", manifest.save_uuid},
                    {"num_shards", checkpoint.num_shards()},
                    {"state_bytes", state_bytes(manifest)},
                    {"files", std::move(files)},
                    {"tensors", std::move(tensors)},
                    {"global", *manifest.global}};
  // A path may be any bytes; the rest is known to be UTF-8.
  return all.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

std::vector<std::string> tensor_digests(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  const std::int64_t bytes = in_order_buffer_bytes(manifest);
  const auto memory = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(bytes));
  BlockReader reader(checkpoint, {memory.get(), DType::kU8, bytes});
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  std::vector<std::string> digests;
  XXH3_64bits_reset(state.get());
  const StoredElements elements(manifest);
  for (int tensor = 0; tensor < static_cast<int>(manifest.tensors.size()); ++tensor) {
    elements.visit(tensor, [&](const StoredRun& run) {
      reader.each(run, [&](std::string_view part) {
        XXH3_64bits_update(state.get(), part.data(), part.size());
      });
    });
    digests.push_back(fmt::format("{:016x}", XXH3_64bits_digest(state.get())));
    XXH3_64bits_reset(state.get());
  }
  return digests;
}

}  // namespace sherd::checkpoint
