#include "engine/launch/pci_tree.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  return entries;
}

// "0000:3b:00.0"
bool is_address(const std::string& name) {
  return name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

// PCI Express 6.0, 7.7.8: extended capability 13; bits 2 and 3 of its control redirect.
AcsRedirect redirect_of(const std::string& config) {
  std::ifstream file(config, std::ios::binary);
  const std::vector<unsigned char> bytes((std::istreambuf_iterator<char>(file)),
                                         std::istreambuf_iterator<char>());
  constexpr std::size_t kExtended = 0x100, kAcs = 0x0d, kRedirects = 0x0c;
  const auto word = [&](std::size_t at) {
    return at + 1 < bytes.size() ? static_cast<std::size_t>(bytes[at] | bytes[at + 1] << 8) : 0;
  };
  if (bytes.size() <= kExtended) return AcsRedirect::kUnreadable;  // without root, 64 bytes
  std::size_t at = kExtended;
  for (int steps = 0; at >= kExtended && steps < 64; ++steps) {
    if (word(at) == kAcs) {
      return (word(at + 6) & kRedirects) != 0 ? AcsRedirect::kOn : AcsRedirect::kOff;
    }
    at = word(at + 2) >> 4;
  }
  return AcsRedirect::kOff;
}

std::size_t num_common(const PciDevice& a, const PciDevice& b) {
  const auto [own, other] = std::ranges::mismatch(a.bridges, b.bridges);
  return static_cast<std::size_t>(own - a.bridges.begin());
}

}  // namespace

std::string_view name_of(PciDistance distance) {
  constexpr std::string_view kNames[] = {"PIX", "PXB", "PHB", "SYS"};
  return kNames[static_cast<std::size_t>(distance)];
}

std::string text_in(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

std::optional<PciDevice> pci_device(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);
  if (error) return std::nullopt;
  PciDevice device;
  for (const fs::path& part : path) {
    const std::string name = part.string();
    if (name.starts_with("pci") && name.find(':') != std::string::npos) device.root = name;
    if (!is_address(name)) continue;
    if (!device.address.empty()) device.bridges.push_back(device.address);
    device.address = name;
  }
  if (device.address.empty()) return std::nullopt;
  const std::string node = text_in(path / "numa_node");
  if (!node.empty()) device.numa_node = std::atoi(node.c_str());
  return device;
}

PciDistance distance_of(const PciDevice& a, const PciDevice& b) {
  if (a.root != b.root) {
    return a.numa_node == b.numa_node ? PciDistance::kPhb : PciDistance::kSys;
  }
  const std::size_t common = num_common(a, b);
  if (common == 0) return PciDistance::kPhb;  // below different ports of the host bridge
  const std::size_t below = std::max(a.bridges.size(), b.bridges.size()) - common;
  return below <= 1 ? PciDistance::kPix : PciDistance::kPxb;
}

std::vector<PciDevice> nvidia_gpus(const std::string& sys) {
  std::vector<PciDevice> gpus;
  for (const fs::path& entry : entries_of(sys + "/bus/pci/devices")) {
    const std::string kind = text_in(entry / "class");  // 0x0300..: display controllers
    if (text_in(entry / "vendor") != "0x10de" || !kind.starts_with("0x03")) continue;
    if (auto device = pci_device(entry)) gpus.push_back(*device);
  }
  return gpus;
}

std::vector<VerbsDevice> verbs_devices(const std::string& sys) {
  std::vector<VerbsDevice> devices;
  for (const fs::path& entry : entries_of(sys + "/class/infiniband")) {
    const auto pci = pci_device(entry / "device");
    if (!pci) continue;  // in software, such as rxe
    VerbsDevice device{.name = entry.filename(), .pci = *pci};
    for (const fs::path& port : entries_of(entry / "ports")) {
      const std::string state = text_in(port / "state");
      if (device.state.empty()) {
        device.state = state;
        device.link = text_in(port / "link_layer");
        device.rate = text_in(port / "rate");
      }
      device.is_active = device.is_active || state.ends_with("ACTIVE");
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

FoundAcs acs_between(const std::string& sys, const PciDevice& a, const PciDevice& b) {
  FoundAcs found;
  if (a.root != b.root) return found;
  const std::size_t common = num_common(a, b);
  for (const PciDevice* device : {&a, &b}) {
    for (std::size_t i = common; i < device->bridges.size(); ++i) {
      const std::string& bridge = device->bridges[i];
      const AcsRedirect redirect = redirect_of(sys + "/bus/pci/devices/" + bridge + "/config");
      if (redirect == AcsRedirect::kOn) return {redirect, bridge};
      if (redirect == AcsRedirect::kUnreadable && found.bridge.empty()) found = {redirect, bridge};
    }
  }
  return found;
}

}  // namespace sherd::engine
