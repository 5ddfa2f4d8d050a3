/// A command in each of several processes, which mpirun, srun or torchrun's variables start. Together
/// they report as one program: one message of a failure, one exit code.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "sharding/processes/processes.h"

namespace sherd::main {

/// 1 if this process was started alone.
int num_processes();
/// Meets them. `patience`: how long one may come after another.
/// Errors   UsageError: built without MPI. PeerError: another process doesn't come.
std::unique_ptr<sharding::Processes> other_processes(std::chrono::milliseconds patience);
/// Runs `body`, whose failure ends all processes. Returns the exit code.
int run_with_others(const std::shared_ptr<sharding::Processes>& processes,
                    std::chrono::milliseconds peer_timeout, const std::function<void()>& body);
/// Ends the process although these ranks go on: a thread that computes or waits forever can't be
/// ended. For its files, this is like any other crash.
[[noreturn]] void end_without(const std::string& ranks, const std::exception_ptr& error);

}  // namespace sherd::main
