/// The scratch memory that the kernels of a model's passes need: one buffer of the largest size
/// that any of them needs, since a compute stream runs one kernel at a time.
#pragma once

#include "engine/model/shape.h"
#include "kernels/device.h"

namespace sherd::model {

/// For all blocks, and for the embedding and the head if they are on this rank.
std::int64_t workspace_bytes(const ModelShape& shape, const kernels::ComputeDevice& device,
                             bool embedding, bool head);

}  // namespace sherd::model
