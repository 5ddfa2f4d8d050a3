/// Whether network cards can read and write GPU memory directly (GPUDirect RDMA), so that messages
/// to other machines don't pass through host memory; and what is missing if they can't.
///
///   devices   NVIDIA GPUs, and verbs devices with an active port: /sys/bus/pci, /sys/class/infiniband
///   driver    nvidia_peermem (or nv_peer_mem), or DMA-BUF: the open kernel module and Linux 5.12
///   path      of each GPU to its nearest card: below one PCI host bridge. Bridges in between don't
///             redirect traffic (ACS). Devices aren't translated (IOMMU)
///   process   may lock memory; NCCL's variables allow it
///   log       what NCCL said it did, in a file of NCCL_DEBUG=INFO
///
/// Sources: NCCL's user guide (environment variables; troubleshooting), the GPUDirect RDMA guide.
/// Only files are read. It has not been tried on a machine with these devices.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sherd::engine {

struct RdmaSources {
  std::string sys = "/sys", proc = "/proc";
  std::string nccl_log{};  ///< its content; "": none
  /// An environment variable; "" if it isn't set.
  std::function<std::string(const char* name)> variable{};
};

/// One sentence each. Empty without a GPU, since there is nothing to say.
std::vector<std::string> rdma_report(const RdmaSources& sources);

}  // namespace sherd::engine
