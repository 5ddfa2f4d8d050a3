/// Offsets of grouped products, from the host to a GPU's memory. They travel as a kernel's
/// parameter (3 KiB of at most 4), so the host need not wait before it changes them.
#pragma once

#include "core/stream.h"
#include "kernels/device_common/grouped_rows.h"

namespace sherd::kernels::cuda {

void set_group_offsets(Stream& stream, const device_common::GroupOffsets& offsets,
                       std::int64_t experts, std::int32_t* out);

}  // namespace sherd::kernels::cuda
