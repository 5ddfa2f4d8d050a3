/// Where GPUs and network cards are in a machine's PCI tree, as /sys shows it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sherd::engine {

/// How far two devices are from each other, by NCCL's names (`nvidia-smi topo -m`).
enum class PciDistance {
  kPix,  ///< through one PCI switch, or one bridge
  kPxb,  ///< through several PCI switches
  kPhb,  ///< through the processor's PCI host bridge
  kSys   ///< through the link between processors
};
std::string_view name_of(PciDistance distance);

struct PciDevice {
  std::string address;               ///< "0000:3b:00.0"
  std::string root;                  ///< of its tree: "pci0000:3a"
  std::vector<std::string> bridges;  ///< addresses from the root to its parent
  int numa_node = -1;                ///< -1: unknown
};
/// The device whose folder a path in /sys leads to; none if it isn't a PCI device.
std::optional<PciDevice> pci_device(const std::string& folder);

PciDistance distance_of(const PciDevice& a, const PciDevice& b);

struct VerbsDevice {
  std::string name;  ///< "mlx5_0"
  PciDevice pci;
  bool is_active = false;  ///< some port is
  std::string state{};     ///< of the first port: "4: ACTIVE"
  std::string link{};      ///< "InfiniBand", "Ethernet"
  std::string rate{};      ///< "400 Gb/sec (4X NDR)"
};
/// `sys`: "/sys", or a tree like it.
std::vector<PciDevice> nvidia_gpus(const std::string& sys);
std::vector<VerbsDevice> verbs_devices(const std::string& sys);

/// Whether bridges send traffic between their devices to the processor (Access Control Services).
enum class AcsRedirect { kOff, kOn, kUnreadable };
/// Of the bridges between two devices of one tree, below the last one that both are below.
struct FoundAcs {
  AcsRedirect redirect = AcsRedirect::kOff;
  std::string bridge;  ///< the first that isn't off
};
FoundAcs acs_between(const std::string& sys, const PciDevice& a, const PciDevice& b);

/// A file's content without spaces at its end; "" if there is no such file.
std::string text_in(const std::string& path);

}  // namespace sherd::engine
