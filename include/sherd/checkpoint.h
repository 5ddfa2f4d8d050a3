/// A checkpoint on disk: what it holds, and its tensors as plain numbers.
///
///   const sherd::Checkpoint checkpoint("runs/quickstart");      // its newest
///   for (const sherd::TensorInfo& tensor : checkpoint.tensors()) ...
///   const std::vector<float> weights = checkpoint.read_floats("embedding.token.weight");
///
/// Tensors are whole, whatever number of ranks and stage has saved them. Every byte that is read is
/// compared with its checksum. Several threads may use one Checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

struct TensorInfo {
  std::string name{};
  /// "param", or state of the optimizer, such as "exp_avg": `sherd inspect` lists the kinds.
  std::string kind{};
  std::string dtype{};  ///< as stored: "f32", "bf16", "f16", "u8"
  std::vector<std::int64_t> shape{};

  std::int64_t num_elements() const {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return count;
  }
};

class SHERD_API Checkpoint {
 public:
  /// `path` is a checkpoint's folder, or a run's, for its newest checkpoint; "RUN/best" is the one
  /// with the lowest validation loss. A run that continues doesn't remove it while this exists.
  /// Errors   DataError if there is none, or it is incomplete
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();
  Checkpoint(Checkpoint&& other) noexcept;
  Checkpoint& operator=(Checkpoint&& other) noexcept;

  const std::string& path() const;
  std::int64_t step() const;  ///< steps done
  const std::vector<TensorInfo>& tensors() const;
  /// What `sherd inspect --json` prints: files, tensors, counters, the recipe.
  std::string json() const;
  /// Counters and settings of the run alone: the object "global" of `json`.
  std::string counters_json() const;
  /// The recipe of the run, as text; "" if the checkpoint has none.
  std::string recipe() const;

  /// All elements of a tensor, row by row. f32, bf16 and f16 are exact as floats. 8-bit moments are
  /// codes from 0 to 255.
  /// Errors   UsageError if there is no such tensor; DataError for damaged bytes
  std::vector<float> read_floats(const std::string& name, const std::string& kind = "param") const;
  std::vector<double> read_doubles(const std::string& name,
                                   const std::string& kind = "param") const;
  /// The same into memory of the caller, for `count` elements: the tensor's number of elements.
  void read_floats(const std::string& name, const std::string& kind, float* to,
                   std::int64_t count) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace sherd::SHERD_ABI
