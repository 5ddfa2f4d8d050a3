/// Errors of the library. Each call states its results as values and its failures as one of these.
///
/// `what()` is the sentence that the program `sherd` would print: where, what was expected and what
/// was found, what to do. Errors of a recipe have one line for each problem.
///
///   UsageError      what was asked for can't be done: an unknown key, a model that doesn't fit
///   DataError       a file is missing, damaged, or not what it should be
///   PeerError       another rank has stopped, or didn't answer
///   TrainingError   the training can't continue: a loss that isn't finite, no memory left
///
/// What a program's own callback throws isn't converted. std::bad_alloc may come from any call.
#pragma once

#include <stdexcept>
#include <string>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

enum class ErrorKind { kUsage, kData, kPeer, kTraining };

class SHERD_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);
  ~Error() override;
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

class SHERD_API UsageError : public Error {
 public:
  explicit UsageError(const std::string& message);
  ~UsageError() override;
};

class SHERD_API DataError : public Error {
 public:
  explicit DataError(const std::string& message);
  ~DataError() override;
};

class SHERD_API PeerError : public Error {
 public:
  explicit PeerError(const std::string& message);
  ~PeerError() override;
};

class SHERD_API TrainingError : public Error {
 public:
  explicit TrainingError(const std::string& message);
  ~TrainingError() override;
};

}  // namespace sherd::SHERD_ABI
