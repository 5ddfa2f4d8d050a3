#include "engine/library/errors.h"

namespace sherd::library {

void throw_for_user(const Error& error) {
  if (dynamic_cast<const UsageError*>(&error)) throw v0::UsageError(error.what());
  if (dynamic_cast<const DataError*>(&error)) throw v0::DataError(error.what());
  constexpr int kPeerExit = 4;  // RefusedElsewhere has it, too
  if (error.exit_code() == kPeerExit) throw v0::PeerError(error.what());
  throw v0::TrainingError(error.what());
}

}  // namespace sherd::library

namespace sherd::v0 {

Error::Error(ErrorKind kind, const std::string& message)
    : std::runtime_error(message), kind_(kind) {}
UsageError::UsageError(const std::string& message) : Error(ErrorKind::kUsage, message) {}
DataError::DataError(const std::string& message) : Error(ErrorKind::kData, message) {}
PeerError::PeerError(const std::string& message) : Error(ErrorKind::kPeer, message) {}
TrainingError::TrainingError(const std::string& message) : Error(ErrorKind::kTraining, message) {}

// Here, so that the library has their type information.
Error::~Error() = default;
UsageError::~UsageError() = default;
DataError::~DataError() = default;
PeerError::~PeerError() = default;
TrainingError::~TrainingError() = default;

}  // namespace sherd::v0
