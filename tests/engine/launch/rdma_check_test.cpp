// GPUDirect RDMA, on made-up trees of /sys and /proc.
#include "engine/launch/rdma_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;

// A machine in which everything is in place: a GPU and a card below one PCI switch.
class RdmaCheck : public ::testing::Test {
 protected:
  RdmaCheck() {
    write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1\n");
    write("proc/sys/kernel/osrelease", "6.8.0-90-generic\n");
    write("proc/cmdline", "root=/dev/sda1 ro\n");
    limit("unlimited");
    write("sys/module/nvidia_peermem/version", "570.1\n");
  }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(folder_.file(path)).parent_path());
    folder_.write(path, text);
  }
  void limit(const std::string& bytes) const {
    write("proc/self/limits",
          "Limit                     Soft Limit           Hard Limit\n"
          "Max locked memory         " +
              bytes + "   unlimited   bytes\n");
  }
  // `path` below sys/devices: "pci0000:3a/0000:3a:00.0/0000:3b:00.0".
  void add_device(const std::string& path, int numa_node, const std::string& kind,
                  const std::string& vendor) const {
    const std::string folder = "sys/devices/" + path;
    write(folder + "/class", kind + "\n");
    write(folder + "/vendor", vendor + "\n");
    write(folder + "/numa_node", std::to_string(numa_node) + "\n");
    link(path);
  }
  void link(const std::string& path) const {
    fs::create_directories(folder_.file("sys/bus/pci/devices"));
    const fs::path name = folder_.file("sys/bus/pci/devices/" + fs::path(path).filename().string());
    if (!fs::exists(name)) fs::create_directory_symlink(folder_.file("sys/devices/" + path), name);
  }
  void add_gpu(const std::string& path, int numa_node = 0) const {
    add_device(path, numa_node, "0x030200", "0x10de");
  }
  void add_card(const std::string& name, const std::string& path, int numa_node = 0,
                const std::string& state = "4: ACTIVE",
                const std::string& link_layer = "InfiniBand") const {
    add_device(path, numa_node, "0x020700", "0x15b3");
    const std::string folder = "sys/class/infiniband/" + name;
    write(folder + "/ports/1/state", state + "\n");
    write(folder + "/ports/1/link_layer", link_layer + "\n");
    write(folder + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    fs::create_directory_symlink(folder_.file("sys/devices/" + path),
                                 folder_.file(folder + "/device"));
  }
  // A bridge's configuration space with this control word of ACS.
  void set_acs(const std::string& bridge_path, int control, bool as_root = true) const {
    std::string bytes(as_root ? 4096 : 64, '\0');
    if (as_root) {
      bytes[0x100] = 0x01;  // another capability first, whose next is at 0x140
      bytes[0x102] = 0x01;
      bytes[0x103] = 0x14;
      bytes[0x140] = 0x0d;
      bytes[0x142] = 0x01;
      bytes[0x146] = static_cast<char>(control);
    }
    write("sys/devices/" + bridge_path + "/config", bytes);
    link(bridge_path);
  }
  void add_usual() const {
    add_gpu(kSwitch + "/0000:3c:00.0/0000:3d:00.0");
    add_card("mlx5_0", kSwitch + "/0000:3c:04.0/0000:3e:00.0");
    for (const char* port : {"/0000:3c:00.0", "/0000:3c:04.0"}) set_acs(kSwitch + port, 0);
  }
  std::vector<std::string> report(const std::string& log = "") const {
    return rdma_report({.sys = folder_.file("sys"),
                        .proc = folder_.file("proc"),
                        .nccl_log = log,
                        .variable = [this](const char* name) {
                          const auto found = variables_.find(name);
                          return found == variables_.end() ? std::string() : found->second;
                        }});
  }
  void expect(const std::vector<std::string>& lines, const std::string& log = "") const {
    EXPECT_EQ(report(log), lines);
  }

  const std::string kSwitch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
  const std::string kPair = "GPU 0000:3d:00.0 and mlx5_0 (InfiniBand, 400 Gb/sec (4X NDR)), ";
  test::TempFolder folder_;
  std::map<std::string, std::string> variables_;
};

TEST_F(RdmaCheck, SaysNothingWithoutAGpu) {
  expect({});
  add_card("mlx5_0", kSwitch + "/0000:3c:04.0/0000:3e:00.0");
  expect({});
}

TEST_F(RdmaCheck, IsPossibleBelowOneSwitch) {
  add_usual();
  expect({kPair + "PIX: possible"});
}

TEST_F(RdmaCheck, NeedsAVerbsDevice) {
  add_gpu(kSwitch + "/0000:3c:00.0/0000:3d:00.0");
  expect({"GPUDirect RDMA: no, there is no verbs device with an active port, so NCCL uses TCP"});
}

TEST_F(RdmaCheck, NeedsAnActivePort) {
  add_gpu(kSwitch + "/0000:3c:00.0/0000:3d:00.0");
  add_card("mlx5_0", kSwitch + "/0000:3c:04.0/0000:3e:00.0", 0, "1: DOWN");
  expect({"GPUDirect RDMA: no, there is no verbs device with an active port, so NCCL uses TCP",
          "mlx5_0: its port is \"1: DOWN\""});
}

TEST_F(RdmaCheck, NeedsTheDriver) {
  add_usual();
  fs::remove_all(folder_.file("proc/driver"));
  expect({"GPUDirect RDMA: no, NVIDIA's driver isn't loaded"});
}

TEST_F(RdmaCheck, NeedsPeerMemoryOrDmaBuf) {
  add_usual();
  fs::remove_all(folder_.file("sys/module"));
  const std::string missing =
      "GPUDirect RDMA: no, the driver offers neither nvidia_peermem nor DMA-BUF; run modprobe "
      "nvidia_peermem, or install NVIDIA's open kernel module on Linux 5.12 or newer";
  expect({missing});
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  570.1\n");
  expect({kPair + "PIX: possible"});
  variables_["NCCL_DMABUF_ENABLE"] = "0";
  expect(
      {"GPUDirect RDMA: no, NCCL_DMABUF_ENABLE is 0 and nvidia_peermem isn't loaded; unset the "
       "variable"});
  variables_.clear();
  write("proc/sys/kernel/osrelease", "5.4.0-42-generic\n");
  expect({missing});
  write("sys/kernel/mm/memory_peers/nv_mem/version", "1.3\n");
  expect({kPair + "PIX: possible"});
}

TEST_F(RdmaCheck, ReadsNcclsVariables) {
  add_usual();
  variables_["NCCL_IB_DISABLE"] = "1";
  expect({"GPUDirect RDMA: no, NCCL_IB_DISABLE is 1, so NCCL uses TCP; unset it"});
  variables_ = {{"NCCL_NET_GDR_LEVEL", "LOC"}};
  expect({"GPUDirect RDMA: no, NCCL_NET_GDR_LEVEL is LOC, which forbids it; unset it"});
  variables_ = {{"NCCL_NET", "Socket"}};
  expect({"GPUDirect RDMA: no, NCCL_NET is Socket, so NCCL uses TCP; unset it"});
}

TEST_F(RdmaCheck, LeavesOutCardsThatNcclLeavesOut) {
  add_usual();
  add_card("mlx5_10", "pci0000:5d/0000:5d:00.0/0000:5e:00.0", 1);
  variables_["NCCL_IB_HCA"] = "=mlx5_1,mlx5_10:1";
  expect(
      {"GPU 0000:3d:00.0 and mlx5_10 (InfiniBand, 400 Gb/sec (4X NDR)), SYS: no, they are at "
       "different processors; use a card at the GPU's processor, or set NCCL_NET_GDR_LEVEL=SYS "
       "and measure",
       "mlx5_0: left out by NCCL_IB_HCA"});
  variables_["NCCL_IB_HCA"] = "^mlx5_10";
  expect({kPair + "PIX: possible", "mlx5_10: left out by NCCL_IB_HCA"});
  variables_["NCCL_IB_HCA"] = "mlx5_1";  // all names that begin so
  EXPECT_EQ(report().back(), "mlx5_0: left out by NCCL_IB_HCA");
}

TEST_F(RdmaCheck, NeedsLockedMemory) {
  add_usual();
  limit("8388608");
  expect(
      {"GPUDirect RDMA: no, this process may lock 8192 KiB of memory, and network cards need "
       "locked memory; set ulimit -l unlimited"});
}

TEST_F(RdmaCheck, NamesBridgesThatRedirect) {
  add_usual();
  set_acs(kSwitch + "/0000:3c:04.0", 0x1d);
  expect({kPair + "PIX: slow, bridge 0000:3c:04.0 redirects their traffic to the processor (ACS); "
                  "turn ACS off in the firmware, or with setpci"});
  set_acs(kSwitch + "/0000:3c:04.0", 0x11);  // source validation and upstream forwarding alone
  expect({kPair + "PIX: possible"});
}

TEST_F(RdmaCheck, SaysWhatOnlyRootCanRead) {
  add_usual();
  set_acs(kSwitch + "/0000:3c:00.0", 0, false);
  expect({kPair + "PIX: possible; run as root to see whether bridge 0000:3c:00.0 redirects traffic "
                  "(ACS)"});
}

TEST_F(RdmaCheck, DistinguishesSwitchesHostBridgesAndProcessors) {
  add_gpu(kSwitch + "/0000:3c:00.0/0000:3d:00.0");
  add_card("mlx5_0", "pci0000:5d/0000:5d:00.0/0000:5e:00.0", 1);
  EXPECT_NE(report().at(0).find("SYS: no"), std::string::npos) << report().at(0);
  variables_["NCCL_NET_GDR_LEVEL"] = "SYS";
  expect({kPair + "SYS: possible, but traffic passes two processors; measure it, also without "
                  "NCCL_NET_GDR_LEVEL"});
  variables_["NCCL_NET_GDR_LEVEL"] = "3";
  expect({kPair + "SYS: no, NCCL_NET_GDR_LEVEL is PHB; unset it"});
  variables_.clear();
  add_card("mlx5_1", "pci0000:3a/0000:3a:01.0/0000:40:00.0");
  expect(
      {"GPU 0000:3d:00.0 and mlx5_1 (InfiniBand, 400 Gb/sec (4X NDR)), PHB: possible, but traffic "
       "passes the processor; NCCL may need NCCL_NET_GDR_LEVEL=PHB"});
  add_card("mlx5_2", kSwitch + "/0000:3c:08.0/0000:41:00.0/0000:42:00.0/0000:43:00.0", 0,
           "4: ACTIVE", "Ethernet");
  for (const char* port : {"/0000:3c:00.0", "/0000:3c:08.0", "/0000:3c:08.0/0000:41:00.0",
                           "/0000:3c:08.0/0000:41:00.0/0000:42:00.0"}) {
    set_acs(kSwitch + port, 0);
  }
  expect({"GPU 0000:3d:00.0 and mlx5_2 (Ethernet, 400 Gb/sec (4X NDR)), PXB: possible"});
  variables_["NCCL_NET_GDR_LEVEL"] = "PIX";
  expect(
      {"GPU 0000:3d:00.0 and mlx5_2 (Ethernet, 400 Gb/sec (4X NDR)), PXB: no, "
       "NCCL_NET_GDR_LEVEL is PIX; unset it"});
}

TEST_F(RdmaCheck, TakesTheNearestCardOfEachGpu) {
  add_usual();
  add_gpu("pci0000:5d/0000:5d:00.0/0000:5f:00.0", 1);
  add_card("mlx5_9", "pci0000:5d/0000:5d:00.0/0000:5e:00.0", 1);
  expect({kPair + "PIX: possible",
          "GPU 0000:5f:00.0 and mlx5_9 (InfiniBand, 400 Gb/sec (4X NDR)), PIX: possible"});
}

TEST_F(RdmaCheck, WarnsOfAnIommu) {
  add_usual();
  write("sys/class/iommu/dmar0/version", "1\n");
  const std::string remark =
      "an IOMMU translates addresses, which slows traffic between devices or breaks it; boot with "
      "iommu=pt";
  expect({kPair + "PIX: possible", remark});
  write("proc/cmdline", "root=/dev/sda1 intel_iommu=on iommu=pt\n");
  expect({kPair + "PIX: possible"});
}

TEST_F(RdmaCheck, CountsTheConnectionsInNcclsLog) {
  add_usual();
  expect({kPair + "PIX: possible",
          "NCCL's log: 2 connections with GPUDirect RDMA, 1 through host "
          "memory, 0 over TCP",
          "NCCL's log: \"GPU Direct RDMA Disabled for GPU 1 / HCA 0 (distance 7 > 4)\""},
         "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
         "h:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [receive] via NET/IB/0/GDRDMA\n"
         "h:1:2 [1] NCCL INFO GPU Direct RDMA Disabled for GPU 1 / HCA 0 (distance 7 > 4)\n"
         "h:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0\n");
  EXPECT_EQ(report("NCCL version 2.28\n").back(),
            "NCCL's log has no connection to another machine; write it with NCCL_DEBUG=INFO");
}

TEST_F(RdmaCheck, IgnoresCardsInSoftware) {
  add_gpu(kSwitch + "/0000:3c:00.0/0000:3d:00.0");
  write("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  expect({"GPUDirect RDMA: no, there is no verbs device with an active port, so NCCL uses TCP"});
}

}  // namespace
}  // namespace sherd::engine
