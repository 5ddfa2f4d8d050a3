/// A training step as data: the list of actions of each pipeline rank, and the parameters that it
/// was generated from.
///
/// The text form has a header line with these parameters and one line per rank; blank lines are
/// ignored:
///
///   pipeline 2 chunks_per_rank 1 placement looped micro_batches 2 gathers no reduces per_step
///   rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE
///   rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/schedule/action.h"

namespace sherd::schedule {

/// Which rank has which chunk, on p ranks:
///
///   kLooped   chunk c on rank c mod p                                  0 1 2 3 0 1 2 3
///   kV        back and forth, so that both ends are on rank 0          0 1 2 3 3 2 1 0
enum class Placement { kLooped, kV };

struct ChunkLayout {
  int num_ranks = 1;
  int chunks_per_rank = 1;
  Placement placement = Placement::kLooped;

  int num_chunks() const { return num_ranks * chunks_per_rank; }
  int last_chunk() const { return num_chunks() - 1; }
  int rank_of(int chunk) const;
  /// A rank's chunks in the order of the model.
  std::vector<int> chunks_of(int rank) const;
  /// The chunk's index among its rank's chunks, 0 first.
  int local_index(int chunk) const { return chunk / num_ranks; }
  /// Whether the output of `chunk` goes to another rank.
  bool crosses_after(int chunk) const {
    return chunk < last_chunk() && rank_of(chunk) != rank_of(chunk + 1);
  }

  bool operator==(const ChunkLayout&) const = default;
};

/// Maximum number of forwards of all chunks and micro-batches in a schedule.
inline constexpr std::int64_t kMostForwards = std::int64_t{1} << 24;

/// When a chunk's gradients are added over the ranks that share its state.
enum class Reduces { kNever, kPerStep, kPerMicroBatch };

struct Schedule {
  ChunkLayout layout;
  int num_micro_batches = 1;
  bool gathers = false;  ///< parameters are sharded at rest: a chunk is gathered before it computes
  Reduces reduces = Reduces::kNever;
  std::vector<std::vector<Action>> ranks{};

  bool operator==(const Schedule&) const = default;
};

/// A rank's list on one line, pairs in brackets.
std::string actions_text(const std::vector<Action>& actions);

std::string text_of(const Schedule& schedule);
/// Lines of the text form: the header, and a rank's line.
std::string header_text(const Schedule& schedule);
std::string rank_text(const Schedule& schedule, std::size_t rank);
/// Parses a schedule. validate.h checks whether it can be executed.
/// Errors   UsageError naming the line and the word that can't be read.
Schedule schedule_from(std::string_view text);

}  // namespace sherd::schedule
