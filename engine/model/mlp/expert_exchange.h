/// A layer's experts when ranks divide them: rows travel to the rank that owns their expert, and
/// results come back.
///
///   forward     counts are exchanged once; then, round by round
///               (engine/model/mlp/expert_rounds.h):
///                 x's rows there -> up, activation, down -> rows back
///               a token's results are added at home, in the order of experts
///   backward    x's rows there -> up and activation again, while dy's rows and weights travel ->
///               what experts_backward does -> gradients of x and of weights back, while the owner
///               forms the gradients of its matrices, for one source rank after another
///               (Affine::next)
///
/// Overlap     the shared expert is computed while the first round's rows travel; in the backward,
///             what is listed above. A round's rows wait for the computation of the round before.
///
/// Memory      is the same for every routing: of the owner's rows only one round is there at a
///             time, and nothing of a row is kept. At home there are the rows of all choices, once.
/// Bits        those of one rank with all experts (kernels/expert_rows.h).
/// Order       all expert ranks run the same layer of their micro-batches at the same time.
/// Waits       the host waits for the counts in the forward; it enqueues the rounds that follow
///             from them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/model/computation.h"
#include "engine/model/mlp/expert_rounds.h"
#include "kernels/experts.h"

namespace sherd::model {

class ExpertExchange : protected Part {
 public:
  explicit ExpertExchange(Computation& computation) : Part(computation) {}

  /// After the router has decided: exchanges counts, and begins the forward's first round.
  /// `counts`: as in Forward.
  void begin(const Routing& decided, const ConstTensor& x_TD, std::span<std::int32_t> counts);

  struct Forward {
    Routing decided;
    ConstTensor x_TD;
    ConstTensor up, down;  ///< of this rank's experts
    ConstTensor shared{};  ///< added last; may be empty
    Tensor out_TD;         ///< may be `shared`
    kernels::ExpertsWorkspace workspace;
    /// On a GPU, what the host knows of the counts [R, E], since `begin`; else empty.
    std::span<const std::int32_t> counts{};
    kernels::ExpertAdapters adapters{};
    kernels::ExpertBiases biases{};
  };
  void forward(const Forward& args);

  struct Backward {
    Routing decided;
    ConstTensor x_TD, d_out_TD;
    ConstTensor up, down;
    Tensor d_weights;  ///< [T, k]
    Tensor d_sum;      ///< f32 [T, D]; empty: not needed
    /// The first rank's; empty where matrices are frozen.
    ExpertGradients written;
    std::function<ExpertGradients()> next;
    kernels::ExpertsWorkspace workspace;
    std::span<const std::int32_t> counts{};
    kernels::ExpertAdapters adapters{};
    kernels::ExpertBiases biases{};
  };
  void backward(const Backward& args);

 private:
  std::vector<ExpertRound> rounds(std::span<const std::int32_t> counts) const;
  Tensor order() const;
  void sort(const Routing& decided, const Tensor& counts = {});
  void begin_round(const ConstTensor& x_TD, const ExpertRound& round);
  void send(const char* what, const Tensor& home, std::int64_t width, const ExpertRound& round,
            const Tensor& rows);
  void bring_back(const char* what, const Tensor& rows, std::int64_t width,
                  const ExpertRound& round, const Tensor& home);
  /// `weighs`: each row times its weight, which home_numbers() has.
  void pack(const ConstTensor& from_TD, const ExpertRound& round, bool weighs = false);
  void weights_to_rows(const Routing& decided);
  void backward_round(const Backward& args, const ExpertRound& round);
  Tensor home_rows() const;
  Tensor home_numbers() const;

  std::optional<std::vector<ExpertRound>> begun_;  // of a forward whose first round is under way
};

}  // namespace sherd::model
