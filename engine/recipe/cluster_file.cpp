#include "engine/recipe/cluster_file.h"

#include <algorithm>
#include <charconv>

#include "core/byte_size.h"
#include "core/error.h"
#include "engine/recipe/source.h"
#include "engine/recipe/suggest.h"

namespace sherd::engine {
namespace {

const std::vector<std::string_view> kClusterKeys = {
    "machines", "ranks_per_machine", "device", "memory", "within", "between",
    "host",     "host_memory",       "servers"};
const std::vector<std::string_view> kLinkKeys = {"bandwidth", "latency_us"};
const std::vector<std::string_view> kDevices = {"A100", "H100", "H200", "cpu"};

struct ClusterBlock {
  const RawValue& value;
  std::string where;  // "cluster.yaml", "cluster.yaml: within"

  const RawValue* find(std::string_view key) const {
    for (std::size_t i = 0; i < value.keys.size(); ++i) {
      if (value.keys[i] == key) return &value.items[i];
    }
    return nullptr;
  }
  void check(const std::vector<std::string_view>& known) const {
    if (value.kind != RawValue::Kind::kBlock) {
      throw UsageError("{}: expected a block with {}, found {}.", where,
                       joined(known, ", ", " and "), value.describe());
    }
    for (const std::string& key : value.keys) {
      if (std::ranges::count(value.keys, key) > 1) {
        throw UsageError("{}: {} is given twice. Leave out one.", where, key);
      }
      if (std::ranges::find(known, key) != known.end()) continue;
      const std::string_view meant = nearest(key, known);
      throw UsageError("{}: unknown key \"{}\"{}", where, key,
                       meant.empty() ? fmt::format("; expected {}.", joined(known, ", ", " or "))
                                     : fmt::format("; did you mean \"{}\"?", meant));
    }
  }
};

std::int64_t count_of(const ClusterBlock& cluster, std::string_view key) {
  const RawValue* const raw = cluster.find(key);
  if (raw == nullptr) {
    throw UsageError("{}: {} is missing. Give a number, such as {}: 8.", cluster.where, key, key);
  }
  if (raw->kind == RawValue::Kind::kList) {
    throw UsageError(
        "{}: {} is a list, but one plan has one kind of machine: all ranks wait for the slowest. "
        "Give the number of machines that are alike.",
        cluster.where, key);
  }
  std::int64_t count = 0;
  const char* const end = raw->text.data() + raw->text.size();
  const auto [stop, error] = std::from_chars(raw->text.data(), end, count);
  if (error != std::errc() || stop != end || count < 1 || count > kMostClusterRanks) {
    throw UsageError("{}: {} is {}; expected a whole number from 1 to {}.", cluster.where, key,
                     raw->describe(), kMostClusterRanks);
  }
  return count;
}

std::int64_t bytes_of(const RawValue& raw, const std::string& where) {
  try {
    return parse_bytes(raw.text);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", where, error.what());
  }
}

ClusterLink link_of(const ClusterBlock& cluster, std::string_view key) {
  const RawValue* const raw = cluster.find(key);
  if (raw == nullptr) return {};
  const ClusterBlock link{*raw, fmt::format("{}: {}", cluster.where, key)};
  link.check(kLinkKeys);
  ClusterLink made;
  if (const RawValue* const bandwidth = link.find("bandwidth")) {
    made.bytes = static_cast<double>(bytes_of(*bandwidth, link.where + ".bandwidth"));
  }
  if (const RawValue* const latency = link.find("latency_us")) {
    const std::string& text = latency->text;
    double microseconds = 0.0;
    const auto [stop, error] =
        std::from_chars(text.data(), text.data() + text.size(), microseconds);
    if (error != std::errc() || stop != text.data() + text.size() || !(microseconds > 0.0) ||
        microseconds > 1e6) {
      throw UsageError("{}.latency_us is {}; expected microseconds above 0, such as 6.", link.where,
                       latency->describe());
    }
    made.latency = microseconds * 1e-6;
  }
  return made;
}

std::string device_of(const ClusterBlock& cluster) {
  const RawValue* const raw = cluster.find("device");
  if (raw == nullptr) {
    throw UsageError("{}: device is missing. Give {}.", cluster.where,
                     joined(kDevices, ", ", " or "));
  }
  if (raw->kind == RawValue::Kind::kList) {
    throw UsageError(
        "{}: device is a list, but one plan has one kind of device: all ranks wait for the "
        "slowest. Name that one.",
        cluster.where);
  }
  if (std::ranges::find(kDevices, raw->text) == kDevices.end()) {
    throw UsageError("{}: device is {}; known are {}.", cluster.where, raw->describe(),
                     joined(kDevices, ", ", " and "));
  }
  return raw->text;
}

}  // namespace

Cluster cluster_from(const std::string& yaml, const std::string& where) {
  const RawValue raw = parse_value(yaml, where);
  const ClusterBlock cluster{raw, where};
  cluster.check(kClusterKeys);
  Cluster made{.machines = count_of(cluster, "machines"),
               .ranks_per_machine = count_of(cluster, "ranks_per_machine"),
               .device = device_of(cluster),
               .within = link_of(cluster, "within"),
               .between = link_of(cluster, "between"),
               .host = link_of(cluster, "host"),
               .host_memory = link_of(cluster, "host_memory"),
               .servers = link_of(cluster, "servers")};
  if (made.ranks() > kMostClusterRanks) {
    throw UsageError("{}: {} machines of {} ranks are {} ranks; at most {} are supported.", where,
                     made.machines, made.ranks_per_machine, made.ranks(), kMostClusterRanks);
  }
  if (made.on_cpus() && made.within.latency > 0.0 && made.within.bytes == 0.0) {
    throw UsageError("{}: within.latency_us needs within.bandwidth where the device is cpu.",
                     where);
  }
  if (const RawValue* const memory = cluster.find("memory")) {
    made.memory_bytes = bytes_of(*memory, where + ": memory");
  }
  return made;
}

Cluster read_cluster(const std::string& path) {
  return cluster_from(read_recipe_file(path, "cluster file"), path);
}

}  // namespace sherd::engine
