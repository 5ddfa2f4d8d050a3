// Checkpoints of models that are cut over tensor ranks: saved on one cut, loaded on others.
#include "engine/train/units/cut_pieces.h"

#include <gtest/gtest.h>

#include <deque>

#include "checkpoint/reader.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/model/parameters.h"
#include "tests/checkpoint/support/saved_checkpoint.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

using engine::PiecesFor;
using model::ModelShape;

// The vocabulary, 41, isn't shared evenly; on four tensor ranks two hold copies of each key/value head.
ModelShape shape_of(bool tied) {
  ModelShape shape = tiny_model(tied);
  shape.ffn_width = 36;
  shape.num_layers = 2;
  return shape;
}

std::vector<sharding::StateTensor> tensors_of(const ModelShape& shape) {
  std::vector<sharding::StateTensor> tensors;
  for (const char* kind : {"param", "exp_avg"}) {
    for (const UnitSpec& unit : model::parameter_table(shape)) {
      for (const ParameterSpec& parameter : unit.parameters) {
        tensors.push_back({parameter.name, kind, parameter.shape, DType::kF32});
      }
    }
  }
  return tensors;
}

// What rank `rank` of tensor ranks x slices holds: of each parameter's part, the slice that is its.
class CutState {
 public:
  CutState(const ModelShape& shape, int tensor_ranks, int slices, int rank, PiecesFor purpose) {
    state_.tensors = tensors_of(shape);
    const auto cuts = model::tensor_cut(shape, tensor_ranks, rank % tensor_ranks);
    const int slice = rank / tensor_ranks;
    int tensor = 0;
    for (int kind = 0; kind < 2; ++kind) {
      for (const auto& unit : cuts) {
        for (const ParameterCut& cut : unit) {
          std::int64_t numel = 0;
          for (const Box& box : cut.boxes()) numel += box.numel();
          const std::int64_t first = numel * slice / slices;
          const std::int64_t count = numel * (slice + 1) / slices - first;
          std::vector<float>& memory = memory_.emplace_back(static_cast<std::size_t>(count), -1.0f);
          for (const engine::CutPiece& piece : engine::pieces_of(cut, first, count, purpose)) {
            float* data = memory.data() + piece.in_part - first;
            state_.pieces.push_back({tensor,
                                     piece.first_element,
                                     piece.count,
                                     {data, DType::kF32, piece.count},
                                     piece.band});
          }
          ++tensor;
        }
      }
    }
  }

  // A number for each element of each tensor.
  void fill() {
    each([](float& value, float expected) { value = expected; });
  }
  int wrong() const {
    int wrong = 0;
    each([&](const float& value, float expected) { wrong += value != expected; });
    for (const auto& memory : memory_) wrong += std::count(memory.begin(), memory.end(), -1.0f);
    return wrong;
  }
  const sharding::State& state() const { return state_; }

 private:
  template <class Visit>
  void each(const Visit& visit) const {
    for (const sharding::StatePiece& piece : state_.pieces) {
      const auto& tensor = state_.tensors[static_cast<std::size_t>(piece.tensor)];
      const std::int64_t columns = tensor.shape.back();
      for (std::int64_t i = 0; i < piece.count; ++i) {
        std::int64_t element = piece.first_element + i;
        if (!piece.band.is_whole()) {
          element = element / piece.band.columns * columns + piece.band.first +
                    element % piece.band.columns;
        }
        visit(piece.data.as<float>()[i], static_cast<float>(10000 * piece.tensor + element));
      }
    }
  }

  sharding::State state_;
  std::deque<std::vector<float>> memory_;
};

struct World {
  int tensor_ranks, slices;
};

TEST(CutCheckpoints, OfEveryCutAreLoadedOnEveryOther) {
  const World worlds[] = {{1, 1}, {1, 3}, {2, 1}, {2, 2}, {4, 1}, {4, 2}};
  std::vector<char> buffer(static_cast<std::size_t>(checkpoint::kBlockBytes));
  const Tensor block{buffer.data(), DType::kU8, checkpoint::kBlockBytes};
  for (const bool tied : {true, false}) {
    const ModelShape shape = shape_of(tied);
    for (const World& saving : worlds) {
      const test::TempFolder folder;
      std::deque<CutState> saved;
      const std::string path = test::save_states(
          folder.path(), 5, saving.tensor_ranks * saving.slices,
          [&](int rank) -> const sharding::State& {
            saved.emplace_back(shape, saving.tensor_ranks, saving.slices, rank, PiecesFor::kSaving);
            saved.back().fill();
            return saved.back().state();
          });
      const checkpoint::Checkpoint checkpoint(checkpoint::posix_disk(), path);
      EXPECT_EQ(checkpoint::format_version(checkpoint.manifest()), saving.tensor_ranks > 1 ? 2 : 1);
      for (const World& loading : worlds) {
        for (int rank = 0; rank < loading.tensor_ranks * loading.slices; ++rank) {
          const CutState loaded(shape, loading.tensor_ranks, loading.slices, rank,
                                PiecesFor::kLoading);
          checkpoint::load(checkpoint, loaded.state(), checkpoint::Match::kEverything, block);
          EXPECT_EQ(loaded.wrong(), 0)
              << saving.tensor_ranks << " x " << saving.slices << " to " << loading.tensor_ranks
              << " x " << loading.slices << ", rank " << rank;
        }
      }
    }
  }
}

TEST(CutCheckpoints, OfAMatrixThatIsCutByColumnsHaveAPieceForEachSliceNotForEachRow) {
  const ModelShape shape = shape_of(false);
  const auto cuts = model::tensor_cut(shape, 4, 1);
  for (const ParameterCut& cut : cuts[1]) {
    if (!cut.name.ends_with("mlp.down.weight")) continue;
    const auto pieces = engine::pieces_of(cut, 100, 50, PiecesFor::kSaving);
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].first_element, 100);
    EXPECT_EQ(pieces[0].count, 50);
    EXPECT_EQ(pieces[0].band, (sharding::Band{9, 9}));
    return;
  }
  FAIL() << "no such parameter";
}

}  // namespace
}  // namespace sherd::testing
