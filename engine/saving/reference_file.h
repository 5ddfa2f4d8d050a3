/// The file of a run's reference: log-probabilities of all answers under the weights that training
/// began with. A safetensors file with one tensor, "log_probabilities", F64 [answers].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::engine {

/// A hash of the values and of the data that they belong to, for checkpoints; never 0.
/// `data`: a hash of all training and validation data, in order.
std::uint64_t hash_of_reference(const std::vector<double>& reference, std::uint64_t data);

/// Errors   checkpoint::DiskError
void write_reference(checkpoint::Disk& disk, const std::string& path,
                     const std::vector<double>& reference);

/// What the reference of a checkpoint has to be.
struct ExpectedReference {
  std::int64_t num_answers = 0;
  std::uint64_t data = 0, hash = 0;
};
struct FoundReference {
  std::vector<double> values;
  std::string path;
};
/// From the first of `paths` that has it; there is at least one.
/// Errors   DataError naming the first: it isn't there, is damaged, or belongs to other data
FoundReference read_reference(checkpoint::Disk& disk, const std::vector<std::string>& paths,
                              const ExpectedReference& expected);

}  // namespace sherd::engine
