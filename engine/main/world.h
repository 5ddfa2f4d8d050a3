/// A command in each of several processes, which mpirun, srun or torchrun's variables start. Together
/// they report as one program: one message of a failure, one exit code.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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
/// The same for a command that needs no other start: runs `body` with the processes, or null if this
/// process was started alone.
int in_world(const std::function<void(const std::shared_ptr<sharding::Processes>&)>& body);
/// `given`, or one rank in each process.
std::optional<std::int64_t> ranks_or_processes(
    const std::optional<std::int64_t>& given,
    const std::shared_ptr<sharding::Processes>& processes);
/// Errors   UsageError: standard input, "-", which the first of several processes alone has.
void require_file_of_all(const std::shared_ptr<sharding::Processes>& processes,
                         const std::string& path, std::string_view option);
/// Whether this process prints results: the first one.
bool speaks(const std::shared_ptr<sharding::Processes>& processes);
/// Ends the process although these ranks go on: a thread that computes or waits forever can't be
/// ended. For its files, this is like any other crash.
[[noreturn]] void end_without(const std::string& ranks, const std::exception_ptr& error);

}  // namespace sherd::main
