#include "engine/run/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/model/transformer.h"
#include "engine/train/stop_request.h"
#include "kernels/philox.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

constexpr std::uint32_t kSamplingStep = 0xfffffffeu;  // no training step is numbered so

double uniform(std::uint64_t seed, std::int64_t draw) {
  const auto block =
      kernels::random_block({seed, kSamplingStep, 0}, static_cast<std::uint64_t>(draw));
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(block.word[0]) << 32 | block.word[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

// On a GPU every length costs plans of its libraries, so lengths are rounded up: attention is
// causal, and what stands behind the last token changes nothing before it.
std::int64_t pass_length(const Stream& stream, std::int64_t length, std::int64_t context) {
  constexpr std::int64_t kStep = 64;
  if (stream.device() == DeviceKind::kCpu) return length;
  return std::min(context, (length + kStep - 1) / kStep * kStep);
}

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

}  // namespace

std::int32_t choose_token(const std::vector<float>& logits, const SamplingOptions& options,
                          double u) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Equal logits stay in the order of their ids, so that the choice is one function of the logits.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0.0) return order[0];
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  std::vector<double> weights;
  double total = 0.0;
  for (const std::int32_t id : order) {
    weights.push_back(
        std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / options.temperature));
    total += weights.back();
  }
  double left = u * total;
  for (std::size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0.0) return order[i];
  }
  return order.back();
}

std::vector<std::int32_t> sample(ShardedModel& model, const std::vector<std::int32_t>& prompt,
                                 const SamplingOptions& options,
                                 const sharding::MirroredBuffer& inputs) {
  CHECK(!prompt.empty(), "a prompt without tokens");
  model.rank().memory->enter(kEvaluation);
  const std::int64_t context = model.transformer().shape().seq_length;
  const std::int64_t sequences = model.transformer().shape().sequences;
  std::vector<std::int32_t> tokens = prompt;
  for (std::int64_t draw = 0; draw < options.num_tokens; ++draw) {
    if (const StopRequest stop = stop_request(); stop != StopRequest::kNone) {
      throw_stopped(stop, "during sampling; what was trained is on disk");
    }
    const auto length = std::min<std::int64_t>(context, static_cast<std::int64_t>(tokens.size()));
    const std::int64_t passed = pass_length(model.rank().compute(), length, context);
    auto* window = inputs.host().as<std::int32_t>();
    std::fill_n(std::copy(tokens.end() - length, tokens.end(), window), passed - length, 0);
    inputs.to_device(model.rank().compute(), 0, passed);
    model.transformer().resize(1, passed);
    model.parameters().plan(model.evaluation_uses());
    model.forward({.inputs = inputs.device().part(0, passed), .targets = {}}, kEvaluation);
    const std::vector<float> logits =
        on_host(model.rank().compute(), model.token_logits(length - 1));
    tokens.push_back(choose_token(logits, options, uniform(options.seed, draw)));
  }
  model.transformer().resize(sequences, context);
  return tokens;
}

}  // namespace sherd::engine
