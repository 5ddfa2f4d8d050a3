/// A small model whose parts on two tensor ranks are multiples of 64 elements wide, as state and
/// messages in blocks need.
#pragma once

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

inline model::ModelShape wide_model(bool tied) {
  model::ModelShape shape = tiny_model(tied);
  shape.width = 128;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.head_size = 64;
  shape.ffn_width = 128;
  return shape;
}

}  // namespace sherd::testing
