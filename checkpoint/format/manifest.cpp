#include "checkpoint/format/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format/manifest_check.h"
#include "checkpoint/format/strict_json.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

using nlohmann::json;

// manifest.json begins with kHead and ends with kTailBegin, 16 hex digits, kTailEnd; the digits are
// the checksum of every byte before kTailBegin. Later versions keep this frame, so that "newer" and
// "damaged" can always be told apart.
constexpr std::string_view kHead = R"({"format":"sherd-checkpoint","version":)";
constexpr std::string_view kTailBegin = "\n,\"checksum\":\"";
constexpr std::string_view kTailEnd = "\"}\n";
constexpr std::size_t kTailBytes = kTailBegin.size() + 16 + kTailEnd.size();

std::uint64_t checksum_of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

// Throws unless `text` is in the frame and undamaged.
void check_frame(std::string_view text, const std::string& file) {
  if (!text.starts_with(kHead)) {
    throw DataError("{}: isn't a Sherd checkpoint's manifest: it doesn't begin with {}", file,
                    kHead);
  }
  const auto damaged = [&file](std::string_view how) {
    throw DataError("{}: is damaged or cut off: {}", file, how);
  };
  if (text.size() < kHead.size() + kTailBytes) damaged("it is too short to hold a checksum");
  const std::string_view tail = text.substr(text.size() - kTailBytes);
  std::uint64_t stated = 0;
  if (!tail.starts_with(kTailBegin) || !tail.ends_with(kTailEnd) ||
      !parse_checksum(tail.substr(kTailBegin.size(), 16), stated)) {
    damaged("it doesn't end with its checksum");
  }
  const std::uint64_t found = checksum_of(text.substr(0, text.size() - kTailBytes));
  if (found != stated) {
    damaged(fmt::format("its checksum is {:016x} and it states {:016x}", found, stated));
  }
}

// ------------------------------------------------------------------------------ writing

template <class... Args>
void append(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

void append_dataset(std::string& text, const ShardDataset& dataset) {
  append(text, R"({{"kind":"{}","dtype":"{}","numel":{},"offset":{},"checksums":[)", dataset.kind,
         name_of(dataset.dtype), dataset.numel, dataset.offset);
  for (std::size_t i = 0; i < dataset.checksums.size(); ++i) {
    append(text, R"({}"{:016x}")", i ? "," : "", dataset.checksums[i]);
  }
  text += "]}";
}

void append_shard(std::string& text, const ShardInfo& shard) {
  append(text, R"({{"bytes":{},"metadata_checksum":"{:016x}","datasets":[)", shard.bytes,
         shard.metadata_checksum);
  for (std::size_t i = 0; i < shard.datasets.size(); ++i) {
    text += i ? ",\n" : "\n";
    append_dataset(text, shard.datasets[i]);
  }
  text += "],\n\"pieces\":[";
  for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
    const ShardPiece& piece = shard.pieces[i];
    append(text, "{}[{},{},{},{}", i ? "," : "", piece.tensor, piece.first_element, piece.count,
           piece.position);
    if (!piece.band.is_whole()) append(text, ",{},{}", piece.band.first, piece.band.columns);
    text += "]";
  }
  text += "]}";
}

void append_tensor(std::string& text, const sharding::StateTensor& tensor) {
  append(text, R"({{"name":"{}","kind":"{}","dtype":"{}","shape":[)", tensor.name, tensor.kind,
         name_of(tensor.dtype));
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    append(text, "{}{}", i ? "," : "", tensor.shape[i]);
  }
  text += "]}";
}

// Only values that are read back unchanged may be written.
void check_survives(const json& value, int depth) {
  SHERD_CHECK(depth < kMaxJsonDepth, "a checkpoint's global values are nested too deep");
  SHERD_CHECK(!value.is_number_float() || std::isfinite(value.get<double>()),
              "a checkpoint's global values hold an infinity or a NaN, which JSON can't hold");
  if (!value.is_structured()) return;
  for (const json& inner : value) check_survives(inner, depth + 1);
}

// ------------------------------------------------------------------------------ reading

DType read_dtype(const JsonNode& node, int version) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8}) {
    if (node.text() == name_of(dtype) && (dtype != DType::kU8 || version >= 3)) return dtype;
  }
  node.refuse(fmt::format("is \"{}\"; types are {}", printable(node.text()),
                          version >= 3 ? "f32, bf16 and u8" : "f32 and bf16"));
}

std::string read_kind(const JsonNode& node) {
  if (!is_state_kind(node.text())) {
    node.refuse(fmt::format("is \"{}\"; a kind is 1 to {} of a-z and _", printable(node.text()),
                            kMaxKindLength));
  }
  return node.text();
}

ShardDataset read_dataset(const JsonNode& node, int version) {
  node.expect_members({"kind", "dtype", "numel", "offset", "checksums"});
  ShardDataset dataset;
  dataset.kind = read_kind(node.member("kind"));
  dataset.dtype = read_dtype(node.member("dtype"), version);
  dataset.numel =
      node.member("numel").integer(1, kMaxJsonInteger / 4);  // so that bytes fit as well
  dataset.offset = node.member("offset").integer(kFileAlignment);
  const JsonNode checksums = node.member("checksums");
  const std::int64_t num_blocks = (dataset.bytes() + kBlockBytes - 1) / kBlockBytes;
  if (static_cast<std::int64_t>(checksums.size()) != num_blocks) {
    checksums.refuse(fmt::format("has {} entries; {} bytes are {} blocks of up to {}",
                                 checksums.size(), dataset.bytes(), num_blocks, kBlockBytes));
  }
  dataset.checksums.reserve(checksums.size());
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    dataset.checksums.push_back(checksums.element(i).checksum());
  }
  return dataset;
}

ShardPiece read_piece(const JsonNode& node, int version) {
  if (node.size() != 4 && (version < 2 || node.size() != 6)) {
    node.refuse(version < 2 ? "isn't [tensor, first element, count, position]"
                            : "isn't [tensor, first element, count, position], or this and "
                              "[..., first column, columns]");
  }
  ShardPiece piece;
  piece.tensor = static_cast<int>(node.element(0).integer(0, kMaxTensors - 1));
  piece.first_element = node.element(1).integer(0);
  piece.count = node.element(2).integer(1);
  piece.position = node.element(3).integer(0);
  if (node.size() == 6) piece.band = {node.element(4).integer(0), node.element(5).integer(1)};
  return piece;
}

ShardInfo read_shard(const JsonNode& node, int version) {
  node.expect_members({"bytes", "metadata_checksum", "datasets", "pieces"});
  ShardInfo shard;
  shard.bytes = node.member("bytes").integer(1);
  shard.metadata_checksum = node.member("metadata_checksum").checksum();
  const JsonNode datasets = node.member("datasets");
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    shard.datasets.push_back(read_dataset(datasets.element(i), version));
  }
  const JsonNode pieces = node.member("pieces");
  shard.pieces.reserve(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i)
    shard.pieces.push_back(read_piece(pieces.element(i), version));
  return shard;
}

sharding::StateTensor read_tensor(const JsonNode& node, int version) {
  node.expect_members({"name", "kind", "dtype", "shape"});
  sharding::StateTensor tensor;
  tensor.name = node.member("name").text();
  if (!is_tensor_name(tensor.name)) {
    node.member("name").refuse(
        fmt::format("is \"{}\"; a name is parts of letters, digits, _ and - with single dots "
                    "between them, at most {} long",
                    printable(tensor.name), kMaxNameLength));
  }
  tensor.kind = read_kind(node.member("kind"));
  tensor.dtype = read_dtype(node.member("dtype"), version);
  const JsonNode shape = node.member("shape");
  if (shape.size() < 1 || shape.size() > kMaxDimensions) {
    shape.refuse(fmt::format("has {} dimensions; expected 1 to {}", shape.size(), kMaxDimensions));
  }
  std::int64_t numel = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    tensor.shape.push_back(shape.element(i).integer(1));
    if (__builtin_mul_overflow(numel, tensor.shape.back(), &numel) || numel > kMaxJsonInteger / 4) {
      shape.refuse("has more elements than a file could hold");
    }
  }
  return tensor;
}

std::string read_uuid(const JsonNode& node) {
  if (!is_save_uuid(node.text())) {
    node.refuse(
        fmt::format("is \"{}\"; expected 32 lower-case hex digits", printable(node.text())));
  }
  return node.text();
}

Manifest read_manifest(const JsonNode& root, int version) {
  root.expect_members({"format", "version", "save_uuid", "step", "finite", "block_bytes", "global",
                       "tensors", "shards", "index", "checksum"});
  Manifest manifest;
  manifest.save_uuid = read_uuid(root.member("save_uuid"));
  manifest.step = root.member("step").integer(0, kMaxStep);
  if (!root.member("finite").boolean())
    root.member("finite").refuse("is false; such a state is never loaded");
  root.member("block_bytes").integer(kBlockBytes, kBlockBytes);
  manifest.global = std::make_shared<const json>(root.member("global").object());
  const JsonNode tensors = root.member("tensors");
  if (tensors.size() < 1 || tensors.size() > kMaxTensors) {
    tensors.refuse(fmt::format("has {} entries; expected 1 to {}", tensors.size(), kMaxTensors));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    manifest.tensors.push_back(read_tensor(tensors.element(i), version));
  }
  const JsonNode shards = root.member("shards");
  if (shards.size() < 1 || shards.size() > kMaxShards) {
    shards.refuse(fmt::format("has {} entries; expected 1 to {}", shards.size(), kMaxShards));
  }
  for (std::size_t i = 0; i < shards.size(); ++i)
    manifest.shards.push_back(read_shard(shards.element(i), version));
  const JsonNode index = root.member("index");
  index.expect_members({"bytes", "checksum"});
  manifest.index_bytes = index.member("bytes").integer(1);
  manifest.index_checksum = index.member("checksum").checksum();
  return manifest;
}

}  // namespace

bool has_bands(const ShardInfo& shard) {
  return std::any_of(shard.pieces.begin(), shard.pieces.end(),
                     [](const auto& piece) { return !piece.band.is_whole(); });
}

int format_version(const ShardInfo& shard) {
  const bool has_bytes =
      std::any_of(shard.datasets.begin(), shard.datasets.end(),
                  [](const auto& dataset) { return dataset.dtype == DType::kU8; });
  return has_bytes ? 3 : has_bands(shard) ? 2 : 1;
}

int format_version(const Manifest& manifest) {
  int version = 1;
  for (const ShardInfo& shard : manifest.shards) version = std::max(version, format_version(shard));
  return version;
}

std::string shard_name(int shard, int num_shards) {
  return fmt::format("shard-{:05}-of-{:05}.h5", shard, num_shards);
}

std::string step_directory_name(std::int64_t step) {
  return fmt::format("step-{:010}", step);
}

std::string shard_to_json(const ShardInfo& shard) {
  std::string text;
  append_shard(text, shard);
  return text;
}

ShardInfo parse_shard(std::string_view text, const std::string& file) {
  const json parsed = parse_strict(text, file);
  ShardInfo shard = read_shard(JsonNode(parsed, file), kFormatVersion);
  check_shard_places(shard, file);
  return shard;
}

std::string manifest_to_json(const Manifest& manifest) {
  check_consistent(manifest, "the manifest to be written");
  std::string text(kHead);
  append(text,
         "{},\n\"save_uuid\":\"{}\",\"step\":{},\"finite\":true,\"block_bytes\":{},\n\"global\":",
         format_version(manifest), manifest.save_uuid, manifest.step, kBlockBytes);
  const json none = json::object();
  const json& global = manifest.global ? *manifest.global : none;
  SHERD_CHECK(global.is_object(), "a checkpoint's global values are an object");
  check_survives(global, 2);
  try {
    text += global.dump(-1, ' ', true);
  } catch (const json::type_error&) {
    throw UsageError("a name or text in the recipe isn't UTF-8, so no checkpoint can hold it");
  }
  text += ",\n\"tensors\":[";
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    text += i ? ",\n" : "\n";
    append_tensor(text, manifest.tensors[i]);
  }
  text += "],\n\"shards\":[";
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    text += i ? ",\n" : "\n";
    append_shard(text, manifest.shards[i]);
  }
  append(text, "],\n\"index\":{{\"bytes\":{},\"checksum\":\"{:016x}\"}}", manifest.index_bytes,
         manifest.index_checksum);
  const std::uint64_t checksum = checksum_of(text);
  append(text, "{}{:016x}{}", kTailBegin, checksum, kTailEnd);
  if (text.size() > kMaxManifestBytes) {
    throw DataError("this state's manifest has {} bytes; at most {} can be read back", text.size(),
                    kMaxManifestBytes);
  }
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  if (text.size() > kMaxManifestBytes) {
    throw DataError("{}: has {} bytes; a manifest has at most {}", file, text.size(),
                    kMaxManifestBytes);
  }
  check_frame(text, file);
  const json parsed = parse_strict(text, file);
  const JsonNode root(parsed, file);
  const std::int64_t version = root.member("version").integer(0);
  if (version > kFormatVersion) {
    throw NewerFormat(
        "{}: is of format version {}; this program reads versions 1 to {}. Use the newer program "
        "that wrote it.",
        file, version, kFormatVersion);
  }
  if (version < 1) {
    throw DataError(
        "{}: is of format version {}; this program reads versions 1 to {}. Nothing older was ever "
        "released.",
        file, version, kFormatVersion);
  }
  Manifest manifest = read_manifest(root, static_cast<int>(version));
  check_consistent(manifest, file);
  return manifest;
}

}  // namespace sherd::checkpoint
