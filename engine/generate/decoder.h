/// Logits of one text after another, from a model whose parameters don't change.
///
/// A model with a cache of keys and values (ModelShape::cached_positions) computes each token once.
/// A text that continues the previous one, or shares its beginning, costs only its new tokens.
/// (With longrope, this holds until a text outgrows the original training length.) Without a cache
/// every call passes over the whole text, which the context ranks of a run share. On a CPU the
/// logits are bit-identical either way, except for latent attention, where a cache has latents
/// (LatentShape::absorbed) and sums are formed in another order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/train/sharded_model.h"
#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::engine {

class Decoder {
 public:
  /// On a GPU tokens are passed in multiples of this number, up to the context.
  static constexpr std::int64_t kLengthStep = 64;

  /// `inputs` has room for the model's tokens: [B * S] i32.
  Decoder(ShardedModel& model, const sharding::MirroredBuffer& inputs);
  /// Restores the model's planned shape.
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Maximum number of tokens in a text.
  std::int64_t context() const { return limit_; }
  /// From now on at most so many. GPUs have room for a multiple of kLengthStep.
  void limit_context(std::int64_t positions) { limit_ = std::min(positions, context_); }

  std::int64_t vocab_size() const;

  /// Calls `each(position, logits)` for the positions [first, tokens.size()), in order; `logits`
  /// [V] are for the token after that position, f32, valid during the call. If parameters are
  /// sharded, this is a collective: all ranks pass the same tokens.
  using Each = std::function<void(std::int64_t position, std::span<const float> logits)>;
  void logits(std::span<const std::int32_t> tokens, std::int64_t first, const Each& each);

  /// The logits of the token after the text.
  std::vector<float> last_logits(std::span<const std::int32_t> tokens);

 private:
  std::int64_t pass_length(std::int64_t begin, std::int64_t count) const;
  void pass(std::span<const std::int32_t> tokens, std::int64_t begin, std::int64_t head_uses);
  std::vector<float> rows_on_host(std::int64_t first, std::int64_t count);

  ShardedModel& model_;
  const sharding::MirroredBuffer& inputs_;
  std::int64_t sequences_, seq_length_;  // as planned; seq_length_ of a context rank's part
  std::int64_t context_ranks_, parts_;   // that share a pass's tokens, and in how many parts
  std::int64_t context_;                 // that there is room for
  std::int64_t limit_ = context_;
  bool cached_;
  std::vector<std::int32_t> in_cache_;
};

}  // namespace sherd::engine
