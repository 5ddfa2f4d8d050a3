#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/stop_request.h"
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
                                 const SamplingOptions& options, const Buffer& inputs) {
  CHECK(!prompt.empty(), "a prompt without tokens");
  model.rank().memory->enter(kEvaluation);
  const std::int64_t context = model.transformer().shape().seq_length;
  const std::int64_t sequences = model.transformer().shape().sequences;
  std::vector<std::int32_t> tokens = prompt;
  std::vector<float> logits(static_cast<std::size_t>(model.transformer().shape().vocab_size));
  for (std::int64_t draw = 0; draw < options.num_tokens; ++draw) {
    if (const StopRequest stop = stop_request(); stop != StopRequest::kNone) {
      throw_stopped(stop, "during sampling; what was trained is on disk");
    }
    const auto length = std::min<std::int64_t>(context, static_cast<std::int64_t>(tokens.size()));
    const Tensor window = inputs.tensor().part(0, length);
    std::copy(tokens.end() - length, tokens.end(), window.as<std::int32_t>());
    model.transformer().resize(1, length);
    model.parameters().plan(model.evaluation_uses());
    model.forward({.inputs = window, .targets = {}}, kEvaluation);
    const Tensor row = model.token_logits(length - 1);
    kernels::cast(model.rank().compute(), row,
                  Tensor{logits.data(), DType::kF32, static_cast<std::int64_t>(logits.size())});
    model.rank().compute().synchronize();
    tokens.push_back(choose_token(logits, options, uniform(options.seed, draw)));
  }
  model.transformer().resize(sequences, context);
  return tokens;
}

}  // namespace sherd::engine
