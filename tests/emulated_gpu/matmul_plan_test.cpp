// kernels/cuda/linear.cpp and matmul_plan.cpp over a fake of cuBLASLt: which algorithm multiplies, and how a table of
// measured ones is made. A GPU's table is read once in a process, so each test has a GPU of its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>

#include "kernels/cuda/expert_products.h"
#include "kernels/experts.h"
#include "kernels/libraries.h"
#include "kernels/linear.h"
#include "tests/emulated_gpu/ledger_counts.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/fake_cuda/blas.h"
#include "tests/support/devices/matmul_operands.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/values/temp_folder.h"
#include "tests/support/values/tensors.h"

namespace sherd::testing {
namespace {

using namespace kernels;
using device_common::MatmulAlgorithm;
using device_common::MatmulKey;
using device_common::row_worth_writing;
using device_common::with_rows;
using test::OwnedTensor;

constexpr const char* kFile = "SHERD_MATMUL_TABLE";
const device_common::MatmulPlace kPlace{"fake", "13.1.0"};  // what the fakes say they are

// y = x w + bias on one GPU of the fake machine.
class Product {
 public:
  Product(int device, const LinearShape& shape, DType dtype, bool has_bias = false)
      : shape_(shape),
        x_(dtype, test::random_values(shape.tokens * shape.inputs, 1)),
        w_(dtype, test::random_values(shape.outputs * shape.inputs, 2)),
        bias_(dtype, test::random_values(shape.outputs, 3)),
        y_(dtype, shape.tokens * shape.outputs),
        workspace_(test::workspace(1 << 16)),
        has_bias_(has_bias) {
    use_cuda_device(device);
    stream_ = make_cuda_stream({}, {.device = device});
  }
  Stream& stream() { return *stream_; }
  LinearForward args() {
    // cuBLASLt's workspace lies at a multiple of 256 bytes.
    const Tensor room = workspace_;
    const auto skip =
        static_cast<std::int64_t>((256 - reinterpret_cast<std::uintptr_t>(room.data) % 256) % 256);
    const std::int64_t first = skip / static_cast<std::int64_t>(size_of(room.dtype));
    return {shape_, x_,
            w_,     has_bias_ ? ConstTensor(bias_) : ConstTensor(),
            y_,     room.part(first, room.numel - 256)};
  }
  MatmulKey key() {
    return device_common::on_stream(device_common::matmul_key(args()), stream_->cuda());
  }
  /// The algorithm that multiplied.
  int multiply() {
    linear_forward(*stream_, args());
    stream_->synchronize();
    return fake_cuda::matmuls().back().algorithm;
  }
  const OwnedTensor& result() const { return y_; }
  OwnedTensor on_cpu() {
    const DType dtype = ConstTensor(x_).dtype;
    OwnedTensor y(dtype, shape_.tokens * shape_.outputs);
    OwnedTensor workspace = test::workspace(linear_workspace_bytes(shape_, dtype, DType::kF32, {}));
    LinearForward again = args();
    again.y = y, again.workspace = workspace;
    linear_forward(*test::compute_stream(), again);
    return y;
  }

 private:
  LinearShape shape_;
  OwnedTensor x_, w_, bias_, y_, workspace_;
  bool has_bias_;
  std::unique_ptr<CudaStream> stream_;
};

class MatmulPlans : public ::testing::Test {
 protected:
  MatmulPlans() { fake_cuda::set_blas({}); }
  ~MatmulPlans() override {
    ::unsetenv(kFile);
    fake_cuda::set_blas({});
  }
  void table(const std::string& text) {
    ::setenv(kFile, folder_.write("table.txt", text).c_str(), 1);
  }
  void row(const MatmulKey& key, const MatmulAlgorithm& algorithm) {
    table(with_rows("", kPlace, {{key, algorithm, "by hand"}}));
  }
  test::TempFolder folder_;
};

// What the fake says of its second algorithm.
constexpr MatmulAlgorithm kSecond{.id = 2, .tile = 22, .stages = 5, .cluster_shape = 2};

// Also if the heuristic's first answer can't multiply so many.
TEST_F(MatmulPlans, AnExpertsRowsHaveOneAlgorithmHoweverManyTheyAre) {
  fake_cuda::set_blas({.most_columns = {{1, 600}}});
  on_machine(1, 9, [&] {
    Product product(0, {700, 40, 16}, DType::kBF16);
    const LinearForward args = product.args();
    MatmulKey key = device_common::matmul_key(args);
    key.n = kExpertPiece;
    for (const std::int64_t rows : {1, 24, 512, 700}) {
      cuda::multiply_expert_rows(cuda_stream(product.stream()), key, rows,
                                 {.a = args.w.data, .b = args.x.data, .d = args.y.data},
                                 args.workspace.data);
      product.stream().synchronize();
      EXPECT_EQ(fake_cuda::matmuls().back().algorithm, 2) << rows;
      EXPECT_EQ(fake_cuda::matmuls().back().n, rows);
    }
    EXPECT_EQ(fake_cuda::questions(), 1);
    EXPECT_TRUE(test::same_bits(product.result(), product.on_cpu()));
  });
}

TEST_F(MatmulPlans, WithoutATableTheHeuristicsFirstAnswerMultiplies) {
  on_machine(8, 1, [&] {
    Product product(0, {24, 40, 16}, DType::kBF16, true);
    EXPECT_EQ(product.multiply(), 1);
    EXPECT_TRUE(test::same_bits(product.result(), product.on_cpu()));
    EXPECT_EQ(measured_matmuls(0), "");
  });
}

TEST_F(MatmulPlans, AMeasuredRowMultipliesItsKeyAndNoOther) {
  on_machine(8, 1, [&] {
    Product measured(1, {24, 40, 16}, DType::kBF16), other(1, {25, 40, 16}, DType::kBF16),
        biased(1, {24, 40, 16}, DType::kBF16, true);
    row(measured.key(), kSecond);
    EXPECT_EQ(measured.multiply(), 2);
    EXPECT_TRUE(test::same_bits(measured.result(), measured.on_cpu()));
    EXPECT_EQ(other.multiply(), 1);
    EXPECT_EQ(biased.multiply(), 1);
    ::unsetenv(kFile);  // the file was read when the first one was planned
    EXPECT_EQ(measured.multiply(), 2);
    EXPECT_EQ(measured_matmuls(1), "1 measured matmul algorithm of " + folder_.file("table.txt"));
  });
}

TEST_F(MatmulPlans, ARowOfAnotherGpuOrVersionIsIgnored) {
  on_machine(8, 1, [&] {
    Product product(2, {24, 40, 16}, DType::kBF16);
    table(with_rows(with_rows("", {"fake", "13.0.0"}, {{product.key(), kSecond, ""}}),
                    {"another", "13.1.0"}, {{product.key(), kSecond, ""}}));
    EXPECT_EQ(product.multiply(), 1);
    EXPECT_NE(measured_matmuls(2).find("(2 of other GPUs or cuBLASLt versions ignored)"),
              std::string::npos)
        << measured_matmuls(2);
  });
}

TEST_F(MatmulPlans, ARowThatCublasRefusesIsAnErrorAndNotReplacedInSilence) {
  on_machine(8, 1, [&] {
    const auto error_on = [&](int device, const MatmulAlgorithm& algorithm) {
      Product product(device, {24, 40, 160}, DType::kBF16);
      row(product.key(), algorithm);
      std::string text;
      try {
        product.multiply();
      } catch (const DataError& error) {
        text = error.what();
      }
      EXPECT_TRUE(fake_cuda::matmuls().empty()) << "something multiplied";
      return text;
    };
    MatmulAlgorithm unknown = kSecond;
    unknown.tile = 7;
    EXPECT_NE(error_on(3, unknown).find("table.txt: cuBLASLt refuses the algorithm for m=160 n=24"),
              std::string::npos);
    unknown = kSecond;
    unknown.id = 99;
    EXPECT_NE(error_on(4, unknown).find("refuses"), std::string::npos);
    MatmulAlgorithm large = kSecond;
    large.split_k = 100, large.reduction = device_common::kReductionInF32;
    EXPECT_NE(error_on(5, large).find("it needs more workspace"), std::string::npos);
  });
}

std::vector<device_common::TimedAlgorithm> timed(const MatmulKey& key, int device) {
  use_cuda_device(device);
  const auto memory = cuda_arena_memory(test::operand_bytes(key));
  const auto stream = make_cuda_stream({}, {.device = device, .deterministic = key.deterministic});
  const test::OperandsOfMatmul operands =
      test::random_operands(*stream, key, {memory->data(), DType::kU8, test::operand_bytes(key)});
  return cuda::time_algorithms(*stream, key, operands.matmul, operands.workspace,
                               {.most = 16, .repeats = 3, .before = [] {}});
}

// The whole way: offered, timed, written, read, used.
TEST_F(MatmulPlans, TuningFindsTheFastestOfWhatAKeyAllows) {
  on_machine(8, 1, [&] {
    fake_cuda::set_blas(
        {.num_algorithms = 5, .takes_ms = {{1, 9}, {2, 7}, {3, 2}, {4, 5}, {5, 8}}});
    const std::vector<std::int64_t> fastest_of_all = {1, 2, 3, 4, 5}, unsplit = {1, 2, 4, 5};
    struct Case {
      bool deterministic, bias;
      std::vector<std::int64_t> offered;
      std::int64_t fastest, reduction;
    };
    for (const Case& each :
         {Case{true, false, fastest_of_all, 3, 2}, Case{false, false, fastest_of_all, 3, 1},
          Case{true, true, unsplit, 4, 0}, Case{false, true, unsplit, 4, 0}}) {
      for (const int alignment : {16, 2}) {
        MatmulKey key = device_common::forward_matmul({24, 40, 16});
        key.in = key.out = DType::kBF16;
        key.epilogue =
            each.bias ? device_common::MatmulEpilogue::kBias : device_common::MatmulEpilogue::kNone;
        key.deterministic = each.deterministic;
        key.alignment = alignment;
        key.workspace_bytes = 1 << 16;
        SCOPED_TRACE(text_of(key));
        const auto found = timed(key, 6);
        std::vector<std::int64_t> ids;
        for (const auto& one : found) ids.push_back(one.algorithm.id);
        EXPECT_EQ(ids, each.offered);
        const auto best = row_worth_writing(key, found);
        ASSERT_EQ(best.size(), 1u);
        EXPECT_EQ(best[0].algorithm.id, each.fastest);
        EXPECT_EQ(best[0].algorithm.reduction, each.reduction);
        EXPECT_EQ(best[0].algorithm.tile, 20 + each.fastest);
        const std::string text = with_rows("", kPlace, best);
        EXPECT_NE(device_common::MatmulTable(text, "t", kPlace).find(key), nullptr) << text;
      }
    }
    fake_cuda::set_blas({.takes_ms = {{1, 3}, {2, 5}, {4, 2}}});
    Product product(6, {24, 40, 160}, DType::kBF16, true);
    table(with_rows("", kPlace, row_worth_writing(product.key(), timed(product.key(), 6))));
    EXPECT_EQ(product.multiply(), 4);
  });
}

TEST_F(MatmulPlans, AnAlgorithmThatNeedsMoreWorkspaceThanThereIsIsntOffered) {
  on_machine(8, 1, [&] {
    MatmulKey key = device_common::forward_matmul({24, 40, 16});
    key.alignment = 4;
    EXPECT_EQ(timed(key, 7).size(), 3u) << "number 3 splits";
    fake_cuda::set_blas({.num_algorithms = 0});
    EXPECT_THROW(timed(key, 7), UsageError);
  });
}

using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

// What is tuned for a recipe are the matmuls that its run computes.
TEST(MatmulsOfALedger, AreThoseThatAStepMultiplies) {
  for (const ModelForm& form : model_forms()) {
    SCOPED_TRACE(form.name);
    engine::TrainingOptions options = tiny_training(form.shape, 1.0f);
    options.optimizer.type = optim::OptimizerType::kMuon;
    const RunShape setup{.num_micro_steps = 2, .place = RunShape::Place::kGpu};
    std::set<Sizes> listed, multiplied;
    const engine::StepLedger step =
        engine::step_ledger({applied(options, setup), mesh_of(setup), {}, 0}, engine::h100_rates());
    for (const std::string& text : step.matmuls) {
      const MatmulKey key = device_common::matmul_key_of(text);
      listed.emplace(key.m, key.n, key.k);
    }
    fake_cuda::set_blas({});
    train(options, setup, 1);
    for (const auto& [m, n, k, algorithm] : fake_cuda::matmuls()) multiplied.emplace(m, n, k);
    EXPECT_EQ(listed, multiplied);
  }
}

}  // namespace
}  // namespace sherd::testing
