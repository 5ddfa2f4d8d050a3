/// The file of a run's reference: log-probabilities of all answers under the weights that training
/// began with. A safetensors file with one tensor, "log_probabilities", F64 [answers].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::engine {

/// A hash of the values, for checkpoints; never 0.
std::uint64_t hash_of_reference(const std::vector<double>& reference);

/// Errors   checkpoint::DiskError
void write_reference(checkpoint::Disk& disk, const std::string& path,
                     const std::vector<double>& reference);

/// The reference of a checkpoint with `hash`, of `num_answers` answers.
/// Errors   DataError: the file isn't there, is damaged, or is another run's
std::vector<double> read_reference(checkpoint::Disk& disk, const std::string& path,
                                   std::int64_t num_answers, std::uint64_t hash);

}  // namespace sherd::engine
