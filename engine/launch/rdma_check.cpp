#include "engine/launch/rdma_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>

#include "engine/launch/pci_tree.h"

namespace sherd::engine {
namespace {

using Lines = std::vector<std::string>;

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// What keeps every GPU of the machine from it, and what only slows it down.
struct Findings {
  Lines problems, remarks;
};

bool has_peer_memory(const std::string& sys) {
  return exists(sys + "/kernel/mm/memory_peers/nv_mem/version") ||
         exists(sys + "/kernel/mm/memory_peers/nv_mem_nc/version") ||
         exists(sys + "/module/nvidia_peermem/version");
}

// Linux 5.12 and NVIDIA's open kernel module.
bool has_dma_buf(const std::string& proc) {
  int major = 0, minor = 0;
  const std::string release = text_in(proc + "/sys/kernel/osrelease");
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2) return false;
  return (major > 5 || (major == 5 && minor >= 12)) &&
         text_in(proc + "/driver/nvidia/version").find("Open Kernel Module") != std::string::npos;
}

void look_at_driver(const RdmaSources& sources, Findings& found) {
  if (!exists(sources.proc + "/driver/nvidia/version")) {
    found.problems.emplace_back("NVIDIA's driver isn't loaded");
    return;
  }
  if (has_peer_memory(sources.sys)) return;
  const bool dma_buf = has_dma_buf(sources.proc);
  if (dma_buf && sources.variable("NCCL_DMABUF_ENABLE") != "0") return;
  found.problems.emplace_back(
      dma_buf
          ? "NCCL_DMABUF_ENABLE is 0 and nvidia_peermem isn't loaded; unset the variable"
          : "the driver offers neither nvidia_peermem nor DMA-BUF; run modprobe nvidia_peermem, "
            "or install NVIDIA's open kernel module on Linux 5.12 or newer");
}

void look_at_variables(const RdmaSources& sources, Findings& found) {
  if (sources.variable("NCCL_IB_DISABLE") == "1") {
    found.problems.emplace_back("NCCL_IB_DISABLE is 1, so NCCL uses TCP; unset it");
  }
  for (const char* name : {"NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL"}) {
    const std::string level = sources.variable(name);
    if (level == "LOC" || level == "0") {
      found.problems.push_back(fmt::format("{} is {}, which forbids it; unset it", name, level));
    }
  }
  if (sources.variable("NCCL_NET") == "Socket") {
    found.problems.emplace_back("NCCL_NET is Socket, so NCCL uses TCP; unset it");
  }
}

// "Max locked memory         65536                65536                bytes"
void look_at_locked_memory(const RdmaSources& sources, Findings& found) {
  std::istringstream lines(text_in(sources.proc + "/self/limits"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("Max locked memory")) continue;
    std::istringstream words(line.substr(17));
    std::string soft;
    words >> soft;
    if (soft == "unlimited") return;
    constexpr double kEnough = 1 << 30;
    const double bytes = std::atof(soft.c_str());
    if (bytes >= kEnough) return;
    found.problems.push_back(
        fmt::format("this process may lock {:.0f} KiB of memory, and network cards need locked "
                    "memory; set ulimit -l unlimited",
                    bytes / 1024.0));
  }
}

void look_at_iommu(const RdmaSources& sources, Findings& found) {
  std::error_code error;
  const std::filesystem::path folder = sources.sys + "/class/iommu";
  if (!exists(folder) || std::filesystem::is_empty(folder, error)) return;
  const std::string options = text_in(sources.proc + "/cmdline");
  for (const char* allowed : {"iommu=pt", "iommu.passthrough=1", "iommu=off"}) {
    if (options.find(allowed) != std::string::npos) return;
  }
  found.remarks.emplace_back(
      "an IOMMU translates addresses, which slows traffic between devices or breaks it; boot with "
      "iommu=pt");
}

// NCCL_IB_HCA: "mlx5_0,mlx5_1", "^mlx5_2", "=mlx5_0:1".
bool is_chosen(const RdmaSources& sources, const std::string& name) {
  std::string list = sources.variable("NCCL_IB_HCA");
  if (list.empty()) return true;
  const bool excludes = list[0] == '^';
  if (excludes) list.erase(0, 1);
  const bool exact = !list.empty() && list[0] == '=';
  if (exact) list.erase(0, 1);
  std::istringstream words(list);
  bool found = false;
  for (std::string word; std::getline(words, word, ',');) {
    const std::string device = word.substr(0, word.find(':'));
    found = found || (exact ? name == device : name.starts_with(device));
  }
  return found != excludes;
}

std::string text_of(const VerbsDevice& card) {
  return fmt::format("{} ({}, {})", card.name, card.link.empty() ? "unknown link" : card.link,
                     card.rate.empty() ? "unknown rate" : card.rate);
}

// The largest distance that NCCL_NET_GDR_LEVEL allows, by name or by number; none: NCCL chooses.
std::optional<PciDistance> allowed_distance(const RdmaSources& sources) {
  const std::string level = sources.variable("NCCL_NET_GDR_LEVEL");
  if (level == "PIX" || level == "1") return PciDistance::kPix;
  if (level == "PXB" || level == "2") return PciDistance::kPxb;
  if (level == "PHB" || level == "3" || level == "4") return PciDistance::kPhb;
  if (level == "SYS" || level == "5") return PciDistance::kSys;
  return std::nullopt;
}

// The sentence about one GPU.
std::string line_of(const RdmaSources& sources, const PciDevice& gpu,
                    const std::vector<VerbsDevice>& cards) {
  const auto distance = [&](const VerbsDevice& card) { return distance_of(gpu, card.pci); };
  const VerbsDevice& card = *std::ranges::min_element(cards, {}, distance);
  const std::string pair =
      fmt::format("GPU {} and {}, {}", gpu.address, text_of(card), name_of(distance(card)));
  const std::optional<PciDistance> allowed = allowed_distance(sources);
  if (allowed && distance(card) > *allowed) {
    return fmt::format("{}: no, NCCL_NET_GDR_LEVEL is {}; unset it", pair, name_of(*allowed));
  }
  if (distance(card) == PciDistance::kSys) {
    return allowed ? fmt::format(
                         "{}: possible, but traffic passes two processors; measure it, also "
                         "without NCCL_NET_GDR_LEVEL",
                         pair)
                   : fmt::format(
                         "{}: no, they are at different processors; use a card at the GPU's "
                         "processor, or set NCCL_NET_GDR_LEVEL=SYS and measure",
                         pair);
  }
  const FoundAcs acs = acs_between(sources.sys, gpu, card.pci);
  if (acs.redirect == AcsRedirect::kOn) {
    return fmt::format(
        "{}: slow, bridge {} redirects their traffic to the processor (ACS); turn ACS off in the "
        "firmware, or with setpci",
        pair, acs.bridge);
  }
  if (distance(card) == PciDistance::kPhb) {
    return fmt::format("{}: possible, but traffic passes the processor{}", pair,
                       allowed ? "" : "; NCCL may need NCCL_NET_GDR_LEVEL=PHB");
  }
  if (acs.redirect == AcsRedirect::kUnreadable) {
    return fmt::format("{}: possible; run as root to see whether bridge {} redirects traffic (ACS)",
                       pair, acs.bridge);
  }
  return fmt::format("{}: possible", pair);
}

// What NCCL said. Its lines end with these words.
Lines lines_of_log(const std::string& log) {
  if (log.empty()) return {};
  int direct = 0, through_host = 0, over_tcp = 0;
  std::string disabled;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const auto has = [&](const char* words) { return line.find(words) != std::string::npos; };
    if (has("via NET/IB") && has("GDRDMA")) {
      ++direct;
    } else if (has("via NET/IB")) {
      ++through_host;
    } else if (has("via NET/Socket")) {
      ++over_tcp;
    }
    const std::size_t at = line.find("GPU Direct RDMA Disabled");
    if (at != std::string::npos && disabled.empty()) disabled = line.substr(at);
  }
  if (direct + through_host + over_tcp == 0) {
    return {"NCCL's log has no connection to another machine; write it with NCCL_DEBUG=INFO"};
  }
  Lines out = {
      fmt::format("NCCL's log: {} connections with GPUDirect RDMA, {} through host memory, "
                  "{} over TCP",
                  direct, through_host, over_tcp)};
  if (!disabled.empty()) out.push_back(fmt::format("NCCL's log: \"{}\"", disabled));
  return out;
}

// Cards that NCCL can use; what keeps the others from it is a remark.
std::vector<VerbsDevice> usable_cards(const RdmaSources& sources, Findings& found) {
  std::vector<VerbsDevice> cards;
  for (const VerbsDevice& card : verbs_devices(sources.sys)) {
    if (!card.is_active) {
      found.remarks.push_back(fmt::format("{}: its port is \"{}\"", card.name, card.state));
    } else if (!is_chosen(sources, card.name)) {
      found.remarks.push_back(fmt::format("{}: left out by NCCL_IB_HCA", card.name));
    } else {
      cards.push_back(card);
    }
  }
  return cards;
}

}  // namespace

std::vector<std::string> rdma_report(const RdmaSources& sources) {
  const std::vector<PciDevice> gpus = nvidia_gpus(sources.sys);
  if (gpus.empty()) return {};
  Findings found;
  const std::vector<VerbsDevice> cards = usable_cards(sources, found);
  Lines lines;
  if (cards.empty()) {
    lines.emplace_back(
        "GPUDirect RDMA: no, there is no verbs device with an active port, so NCCL uses TCP");
  } else {
    look_at_driver(sources, found);
    look_at_variables(sources, found);
    look_at_locked_memory(sources, found);
    look_at_iommu(sources, found);
    for (const std::string& problem : found.problems) {
      lines.push_back("GPUDirect RDMA: no, " + problem);
    }
    for (const PciDevice& gpu : gpus) {
      if (found.problems.empty()) lines.push_back(line_of(sources, gpu, cards));
    }
  }
  lines.insert(lines.end(), found.remarks.begin(), found.remarks.end());
  const Lines of_log = lines_of_log(sources.nccl_log);
  lines.insert(lines.end(), of_log.begin(), of_log.end());
  return lines;
}

}  // namespace sherd::engine
