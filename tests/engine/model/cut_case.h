/// A micro-batch of a model on tensor ranks, which are threads of this process, and on one device that
/// holds everything: losses, gradients, and how far apart these may be.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/model/cut/tensor_cut.h"
#include "engine/model/transformer.h"
#include "engine/train/units/model_collectives.h"
#include "kernels/token.h"
#include "sharding/comm/threads.h"
#include "tests/engine/model/reference_values.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/tensors.h"

namespace sherd::testing {

using ValuesByName = std::map<std::string, std::vector<float>>;

struct MicroBatch {
  std::vector<std::int32_t> inputs, targets;
  model::Pass pass;  ///< without them
};

/// Tokens by formula, of which every seventh has no target; dropout on, somewhere in a run.
inline MicroBatch micro_batch_of(const model::ModelShape& shape) {
  MicroBatch batch;
  const auto token = [&](std::int64_t t, std::uint32_t kind) {
    return static_cast<std::int32_t>(reference_hash(static_cast<std::uint32_t>(t), kind) %
                                     static_cast<std::uint32_t>(shape.vocab_size));
  };
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    batch.inputs.push_back(token(t, 1));
    batch.targets.push_back(t % 7 == 3 ? kernels::kNoTarget : token(t, 2));
  }
  batch.pass = {.inputs = {},
                .targets = {},
                .training = true,
                .seed = 7,
                .step = 3,
                .first_row = 5,
                .gradient_scale = 1.0f / static_cast<float>(shape.tokens()),
                .balance_scale = 1.0f};
  return batch;
}

/// Weights by formula: norms near what they start with, everything else in (-0.2, 0.2).
inline ValuesByName weights_of(const model::ModelShape& shape) {
  ValuesByName weights;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      std::vector<float>& values = weights[parameter.name];
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        values.push_back(parameter.initial.mean +
                         0.2f *
                             static_cast<float>(u(static_cast<std::size_t>(i), parameter.index)));
      }
    }
  }
  return weights;
}

/// The tensors of every unit, as one device has them.
class UnitTensors {
 public:
  UnitTensors(const model::ModelShape& shape, DType dtype, const ValuesByName* values) {
    for (const UnitSpec& unit : model::parameter_table(shape)) {
      std::vector<Tensor>& views = unit.id.role == UnitRole::kLayer
                                       ? part_of(layers_[unit.id.layer], unit.id.part)
                                       : (unit.id.role == UnitRole::kHead ? head_ : embedding_);
      const auto part = static_cast<std::size_t>(unit.id.part);
      const DType own_dtype = part > 0 && shape.layer_parts[part - 1].in_f32 ? DType::kF32 : dtype;
      for (const ParameterSpec& parameter : unit.parameters) {
        names_.push_back(parameter.name);
        if (values != nullptr) {
          const std::vector<float>& own = values->at(parameter.name);
          tensors_.emplace_back(own_dtype, test::Values(own.begin(), own.end()));
        } else {
          tensors_.emplace_back(own_dtype, parameter.numel());
        }
        views.push_back(tensors_.back().tensor());
      }
    }
  }
  const std::vector<Tensor>& first() const { return embedding_; }
  /// By part.
  const std::vector<std::vector<Tensor>>& block(std::int64_t i) const {
    return layers_.at(static_cast<int>(i));
  }
  const std::vector<Tensor>& head(const model::ModelShape& shape) const {
    return shape.tied ? embedding_ : head_;
  }
  ValuesByName values() const {
    ValuesByName all;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const test::Values values = tensors_[i].values();
      all[names_[i]].assign(values.begin(), values.end());
    }
    return all;
  }

 private:
  std::vector<std::string> names_;
  std::deque<test::OwnedTensor> tensors_;
  static std::vector<Tensor>& part_of(std::vector<std::vector<Tensor>>& layer, int part) {
    const auto index = static_cast<std::size_t>(part);
    if (layer.size() <= index) layer.resize(index + 1);
    return layer[index];
  }

  std::vector<Tensor> embedding_, head_;
  std::map<int, std::vector<std::vector<Tensor>>> layers_;
};

struct Computed {
  std::vector<float> losses;
  ValuesByName gradients;
  std::vector<BufferSpec> buffers;  ///< that the model acquired
};

inline model::Pass pass_of(const MicroBatch& batch) {
  model::Pass pass = batch.pass;
  pass.inputs = {batch.inputs.data(), DType::kI32, std::ssize(batch.inputs)};
  pass.targets = {batch.targets.data(), DType::kI32, std::ssize(batch.targets)};
  return pass;
}

/// From the tokens to the last block's output.
inline void forward(model::Transformer& transformer, const UnitTensors& parameters,
                    const model::Pass& pass) {
  const model::ModelShape& shape = transformer.shape();
  transformer.embed(model::embedding_parameters(shape, parameters.first()), pass);
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    transformer.block_forward(i, model::block_parameters(shape, i, parameters.block(i)), pass);
  }
}

inline std::vector<float> losses_of(const model::Transformer& transformer) {
  const auto* losses = transformer.losses().as<float>();
  return {losses, losses + transformer.shape().tokens()};
}

/// One forward and backward of what `shape` describes, a whole model or a rank's part.
inline Computed compute(const model::ModelShape& shape, const ValuesByName& weights,
                        const MicroBatch& batch, Stream& stream,
                        model::Collectives& collectives = model::no_collectives()) {
  const model::Pass pass = pass_of(batch);
  HeapAllocator memory;
  model::Transformer transformer(shape, memory, stream, collectives);
  const UnitTensors parameters(shape, shape.dtype, &weights);
  const UnitTensors gradients(shape, DType::kF32, nullptr);
  forward(transformer, parameters, pass);
  transformer.head_train(model::head_parameters(shape, parameters.head(shape)),
                         model::head_parameters(shape, gradients.head(shape)), pass);
  for (std::int64_t i = shape.num_layers - 1; i >= 0; --i) {
    transformer.block_backward(i, model::block_parameters(shape, i, parameters.block(i)),
                               model::block_parameters(shape, i, gradients.block(i)), pass);
  }
  transformer.embed_backward(model::embedding_parameters(shape, gradients.first()), pass,
                             shape.tied);
  stream.synchronize();
  return {losses_of(transformer), gradients.values(), memory.acquired()};
}

/// The losses alone.
inline std::vector<float> evaluate(const model::ModelShape& shape, const ValuesByName& weights,
                                   const MicroBatch& batch, Stream& stream,
                                   model::Collectives& collectives) {
  const model::Pass pass = pass_of(batch);
  HeapAllocator memory;
  model::Transformer transformer(shape, memory, stream, collectives);
  const UnitTensors parameters(shape, shape.dtype, &weights);
  forward(transformer, parameters, pass);
  transformer.head_evaluate(model::head_parameters(shape, parameters.head(shape)), pass);
  stream.synchronize();
  return losses_of(transformer);
}

inline Computed compute_whole(const model::ModelShape& shape, const ValuesByName& weights,
                              const MicroBatch& batch) {
  return compute(shape, weights, batch, *make_cpu_compute_stream({}));
}

using UnitCuts = std::vector<std::vector<ParameterCut>>;

/// What a rank holds of values of the whole model.
inline ValuesByName held_of(const ValuesByName& whole, const UnitCuts& cuts) {
  ValuesByName held;
  for (const auto& unit : cuts) {
    for (const ParameterCut& cut : unit) {
      const std::vector<float>& from = whole.at(cut.name);
      std::vector<float>& to = held[cut.name];
      std::int64_t numel = 0;
      for (const Box& box : cut.boxes()) numel += box.numel();
      for_each_run(cut.boxes(), cut.columns(), 0, numel, [&](const BoxRun& run) {
        to.insert(to.end(), from.begin() + run.in_tensor, from.begin() + run.in_tensor + run.count);
      });
    }
  }
  return held;
}

/// Puts the boxes that a rank counts where they belong in the whole.
inline void put_counted(const ValuesByName& held, const UnitCuts& cuts, ValuesByName& whole) {
  for (const auto& unit : cuts) {
    for (const ParameterCut& cut : unit) {
      std::int64_t before = 0;
      for (const HeldBox& one : cut.held) {
        const float* from = held.at(cut.name).data() + before;
        before += one.box.numel();
        if (!one.counts) continue;
        for_each_run({one.box}, cut.columns(), 0, one.box.numel(), [&](const BoxRun& run) {
          std::copy_n(from + run.in_part, run.count, whole.at(cut.name).begin() + run.in_tensor);
        });
      }
    }
  }
}

/// Calls `body` on `degree` threads, which are the tensor ranks of `whole`.
inline void run_tensor_ranks(
    const model::ModelShape& whole, int degree,
    const std::function<void(const model::ModelShape& part, Stream&, model::Collectives&)>& body) {
  const auto rendezvous = sharding::make_thread_rendezvous();
  std::vector<int> everyone;
  for (int r = 0; r < degree; ++r) everyone.push_back(r);
  std::vector<std::thread> threads;
  for (int r = 0; r < degree; ++r) {
    threads.emplace_back([&, r] {
      try {
        const model::ModelShape shape = model::tensor_part(whole, degree, r);
        const int copies = shape.part.kv_copies, first = r / copies * copies;
        const auto ranks = rendezvous->join({"tensor", everyone, r});
        std::unique_ptr<sharding::Communicator> same_heads;
        if (copies > 1) {
          same_heads =
              rendezvous->join({fmt::format("copies from {}", first),
                                {everyone.begin() + first, everyone.begin() + first + copies},
                                r - first});
        }
        StreamOptions options;
        options.rank = r;
        const auto stream = make_cpu_compute_stream(std::move(options));
        HeapAllocator memory;
        engine::ModelCollectives collectives(shape.part, memory, *stream, *ranks, same_heads.get());
        body(shape, *stream, collectives);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "tensor rank " << r << " of " << degree << ": " << error.what();
        rendezvous->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// What every rank computed, with its own part of the gradients.
inline std::vector<Computed> compute_cut(const model::ModelShape& whole, int degree,
                                         const ValuesByName& weights, const MicroBatch& batch) {
  std::vector<Computed> ranks(static_cast<std::size_t>(degree));
  run_tensor_ranks(whole, degree,
                   [&](const model::ModelShape& part, Stream& stream, model::Collectives& page) {
                     const int r = part.part.rank;
                     const ValuesByName own = held_of(weights, model::tensor_cut(whole, degree, r));
                     ranks[static_cast<std::size_t>(r)] = compute(part, own, batch, stream, page);
                   });
  return ranks;
}

/// The whole model's gradients, put together from those that count.
inline ValuesByName whole_gradients(const model::ModelShape& whole,
                                    const std::vector<Computed>& ranks) {
  ValuesByName gradients;
  for (const UnitSpec& unit : model::parameter_table(whole)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      gradients[parameter.name].assign(static_cast<std::size_t>(parameter.numel()), NAN);
    }
  }
  const auto degree = static_cast<int>(ranks.size());
  for (int r = 0; r < degree; ++r) {
    put_counted(ranks[static_cast<std::size_t>(r)].gradients, model::tensor_cut(whole, degree, r),
                gradients);
  }
  return gradients;
}

/// How far results may differ that are the same but for rounding: as far as the whole model's move when
/// every weight moves by one unit in the last place, up or down, times kRoundings. A matrix product rounds
/// each of its terms by about one unit, and a model has some products in sequence.
struct Noise {
  static constexpr double kRoundings = 4.0;
  double losses = 0.0;
  std::map<std::string, double> gradients;
};

inline double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::abs(double{a[i]} - double{b[i]});
    if (!(off <= most)) most = off;
  }
  return most;
}

inline Noise noise_of(const model::ModelShape& shape, const ValuesByName& weights,
                      const MicroBatch& batch, const Computed& computed) {
  const float unit = shape.dtype == DType::kF32 ? 0x1p-23f : 0x1p-8f;
  Noise noise;
  for (std::uint32_t draw = 0; draw < 3; ++draw) {
    ValuesByName moved = weights;
    std::uint32_t tensor = 100 * draw;
    for (auto& [name, values] : moved) {
      ++tensor;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool up = reference_hash(static_cast<std::uint32_t>(i), tensor) & 1u;
        values[i] *= up ? 1.0f + unit : 1.0f - unit;
      }
    }
    const Computed other = compute_whole(shape, moved, batch);
    noise.losses = std::max(noise.losses, farthest(computed.losses, other.losses));
    for (const auto& [name, values] : computed.gradients) {
      double& most = noise.gradients[name];
      most = std::max(most, farthest(values, other.gradients.at(name)));
    }
  }
  return noise;
}

/// On four tensor ranks.
inline void expect_evaluation_has_the_bits_of_training(const model::ModelShape& whole,
                                                       const std::string& label) {
  const ValuesByName weights = weights_of(whole);
  MicroBatch batch = micro_batch_of(whole);
  batch.pass.training = false;
  const std::vector<float> trained = compute_cut(whole, 4, weights, batch)[0].losses;
  run_tensor_ranks(whole, 4, [&](const model::ModelShape& part, Stream& stream, auto& page) {
    const ValuesByName own = held_of(weights, model::tensor_cut(whole, 4, part.part.rank));
    EXPECT_EQ(evaluate(part, own, batch, stream, page), trained) << label;
  });
}

}  // namespace sherd::testing
