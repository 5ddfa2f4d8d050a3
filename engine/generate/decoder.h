/// Logits of one text after another, from a model whose parameters stay as they are.
///
/// A model with a cache of keys and values (ModelShape::cached_positions) computes each token once: a
/// text that goes on where the last one ended, or that shares its beginning, costs only what is
/// new (of longrope, until a text outgrows the length of the first training). Without one every call passes over the whole text, which context ranks of a run share. On a CPU the logits have the same bits either way.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/train/sharded_model.h"
#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::engine {

class Decoder {
 public:
  /// On a GPU tokens are passed in multiples of so many, up to the context.
  static constexpr std::int64_t kLengthStep = 64;

  /// `inputs` has room for the model's tokens: [B * S] i32.
  Decoder(ShardedModel& model, const sharding::MirroredBuffer& inputs);
  /// The model has its planned shape again.
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Tokens of a text at most.
  std::int64_t context() const { return context_; }

  std::int64_t vocab_size() const;

  /// Calls `each(position, logits)` for the positions [first, tokens.size()), in order; `logits` [V] are
  /// of the token behind that position, f32, valid during the call. Where parameters are sharded a
  /// collective: all ranks give the same tokens.
  using Each = std::function<void(std::int64_t position, std::span<const float> logits)>;
  void logits(std::span<const std::int32_t> tokens, std::int64_t first, const Each& each);

  /// The logits of the token behind the text.
  std::vector<float> last_logits(std::span<const std::int32_t> tokens);

 private:
  std::int64_t pass_length(std::int64_t begin, std::int64_t count) const;
  void pass(std::span<const std::int32_t> tokens, std::int64_t begin, std::int64_t head_uses);
  std::vector<float> rows_on_host(std::int64_t first, std::int64_t count);

  ShardedModel& model_;
  const sharding::MirroredBuffer& inputs_;
  std::int64_t sequences_, seq_length_;  // as planned; the second of a context rank's part
  std::int64_t context_ranks_, parts_;   // among which a pass's tokens are shared, in so many parts
  std::int64_t context_;
  bool cached_;
  std::vector<std::int32_t> in_cache_;
};

}  // namespace sherd::engine
