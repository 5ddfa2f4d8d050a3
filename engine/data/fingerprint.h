/// 64 bits that distinguish sets of files without reading all of them.
#pragma once

#include <cstdint>
#include <span>

namespace sherd::data {

/// Hashes the size and samples of `bytes`: everything up to 2.25 MiB. For longer data, the samples
/// are the first and last MiB and 64 evenly spaced pieces of 4 KiB. Not a checksum: changes
/// elsewhere aren't detected.
std::uint64_t fingerprint_of(std::span<const std::uint8_t> bytes);

}  // namespace sherd::data
