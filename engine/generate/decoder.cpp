#include "engine/generate/decoder.h"

#include <algorithm>
#include <cstring>

#include "engine/model/transformer.h"

namespace sherd::engine {
namespace {

template <class T>
std::vector<float> floats_of(const std::vector<char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

std::vector<float> on_host(Stream& stream, const Tensor& values) {
  std::vector<char> bytes(static_cast<std::size_t>(values.bytes()));
  stream.copy(values.data, bytes.data(), values.bytes());
  stream.synchronize();
  if (values.dtype == DType::kBF16) return floats_of<BFloat16>(bytes);
  if (values.dtype == DType::kF16) return floats_of<Float16>(bytes);
  return floats_of<float>(bytes);
}

std::int64_t common_length(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return end - a.begin();
}

}  // namespace

Decoder::Decoder(ShardedModel& model, const sharding::MirroredBuffer& inputs)
    : model_(model),
      inputs_(inputs),
      sequences_(model.transformer().shape().sequences),
      seq_length_(model.transformer().shape().seq_length),
      context_ranks_(model.transformer().shape().context.degree),
      parts_(context_ranks_ * model.transformer().shape().position_runs()),
      context_(
          std::max(seq_length_ * context_ranks_, model.transformer().shape().cached_positions)),
      cached_(model.transformer().shape().cached_positions > 0) {
  model_.rank().memory->enter(kEvaluation);
}

Decoder::~Decoder() {
  model_.transformer().rotate_for(context_);
  model_.transformer().resize(sequences_, seq_length_);
}

std::int64_t Decoder::vocab_size() const {
  return model_.vocab_size();
}

void Decoder::logits(std::span<const std::int32_t> tokens, std::int64_t first, const Each& each) {
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  SHERD_CHECK(first >= 0 && first < num_tokens && num_tokens <= context_,
              "logits from {} of {} tokens, a context of {}", first, num_tokens, context_);
  if (model_.transformer().rotate_for(num_tokens))
    in_cache_.clear();  // its keys are rotated otherwise
  std::int64_t begin = cached_ ? std::min(first, common_length(in_cache_, tokens)) : 0;
  while (begin < num_tokens) {
    const std::int64_t end = std::min(begin + seq_length_ * context_ranks_, num_tokens);
    const std::int64_t most = model_.most_logits();
    const std::int64_t wanted = std::max<std::int64_t>(end - std::max(first, begin), 0);
    pass(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
         begin, (wanted + most - 1) / most);
    if (cached_) in_cache_.assign(tokens.begin(), tokens.begin() + end);
    const auto vocab_size = static_cast<std::size_t>(this->vocab_size());
    for (std::int64_t at = std::max(first, begin); at < end; at += most) {
      const std::int64_t count = std::min(most, end - at);
      const std::vector<float> rows = rows_on_host(at - begin, count);
      for (std::int64_t i = 0; i < count; ++i) {
        each(at + i, std::span(rows).subspan(static_cast<std::size_t>(i) * vocab_size, vocab_size));
      }
    }
    begin = end;
  }
}

std::vector<float> Decoder::last_logits(std::span<const std::int32_t> tokens) {
  std::vector<float> last;
  logits(tokens, static_cast<std::int64_t>(tokens.size()) - 1,
         [&](std::int64_t, std::span<const float> of_last) {
           last.assign(of_last.begin(), of_last.end());
         });
  return last;
}

// On a GPU every length costs plans of its libraries, so lengths are rounded up: attention is
// causal, and what follows the last token changes nothing before it. Context ranks have parts of
// one length. One token alone is a length of its own where there is a cache, in which there is room
// up to `context_`.
std::int64_t Decoder::pass_length(std::int64_t begin, std::int64_t count) const {
  const std::int64_t step = kLengthStep * context_ranks_;
  if (model_.rank().compute().device() == DeviceKind::kCpu || (cached_ && count == 1)) {
    return (count + parts_ - 1) / parts_ * parts_;
  }
  return std::min(
      {seq_length_ * context_ranks_, context_ - begin, (count + step - 1) / step * step});
}

// Embedding and blocks of tokens at the positions from `begin` on; the head is used so many times
// after it.
void Decoder::pass(std::span<const std::int32_t> tokens, std::int64_t begin,
                   std::int64_t head_uses) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t passed = pass_length(begin, count);
  const std::int64_t own = passed / context_ranks_;
  model_.transformer().resize(1, own);
  const model::ModelShape& shape = model_.transformer().shape();
  // Memory that the device still copies from isn't written.
  if (model_.rank().separate_memory()) model_.rank().compute().synchronize();
  auto* window = inputs_.host().as<std::int32_t>();
  std::fill_n(std::copy(tokens.begin(), tokens.end(), window), passed - count, 0);
  auto* to = window;
  for (int run = 0; run < shape.position_runs(); ++run) {
    const auto [first, length] = shape.position_run(run);
    to = std::copy_n(window + first, length, to);  // never after the place that is read
  }
  inputs_.to_device(model_.rank().compute(), 0, own);
  std::vector<int> uses = model_.evaluation_uses();
  if (model_.has_head()) {
    const int head = uses.back();
    uses.pop_back();
    uses.insert(uses.end(), static_cast<std::size_t>(head_uses), head);
  }
  model_.plan(std::move(uses));
  model_.forward({.inputs = inputs_.device().part(0, own), .targets = {}, .first_position = begin});
}

std::vector<float> Decoder::rows_on_host(std::int64_t first, std::int64_t count) {
  return on_host(model_.rank().compute(), model_.logits(first, count));
}

}  // namespace sherd::engine
