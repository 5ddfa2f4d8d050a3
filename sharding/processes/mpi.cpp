#include "sharding/processes/mpi.h"

#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "sharding/processes/join_watch.h"
#include "sharding/processes/mpi_communicator.h"

namespace sherd::sharding {
namespace {

constexpr int kMostRanksPerProcess = 256;

bool has_begun() {
  int begun = 0, over = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&over);
  return begun != 0 && over == 0;
}

void begin() {
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
    throw PeerError("MPI can't start; its own messages are above.");
  }
  if (level < MPI_THREAD_MULTIPLE) {
    throw UsageError(
        "this MPI allows calls from only one thread at a time (MPI_THREAD_MULTIPLE is missing); "
        "Open MPI 4.1 of Debian 12 has it.");
  }
}

class MpiProcesses final : public Processes {
 public:
  MpiProcesses(MPI_Comm comm, std::unique_ptr<ControlLinks> links)
      : Processes(std::move(links)), comm_(comm) {
    learn_hosts();
  }
  ~MpiProcesses() override {
    if (links_->aborted() || !has_begun()) return;  // messages may be left in it
    MPI_Comm comm = comm_;
    MPI_Comm_free(&comm);
  }

  std::shared_ptr<Rendezvous> make_rendezvous(int ranks_per_process,
                                              std::chrono::milliseconds timeout,
                                              const MachinesOfProcesses& machines) override {
    if (ranks_per_process > kMostRanksPerProcess) {
      throw UsageError("{} ranks in a process; at most {} are possible. Start more processes.",
                       ranks_per_process, kMostRanksPerProcess);
    }
    std::vector<std::string> names;
    for (int process = 0; process < count(); ++process) {
      names.push_back(name_of_ranks(process * ranks_per_process, ranks_per_process,
                                    hosts_[static_cast<std::size_t>(process)]));
    }
    links_->set_names(std::move(names));
    links_->set_timeout(timeout);
    return make_mpi_rendezvous(comm_, *links_, ranks_per_process, timeout, machines);
  }

 private:
  const MPI_Comm comm_;
};

// The only MPI collectives that are used, before our own connections exist. After the last one,
// `joined` is called.
std::unique_ptr<ControlLinks> connected(MPI_Comm comm, std::chrono::milliseconds timeout,
                                        const std::function<void()>& joined) {
  ControlLinks::Options options{.timeout = timeout};
  MPI_Comm_rank(comm, &options.process);
  MPI_Comm_size(comm, &options.num_processes);
  MPI_Comm host = MPI_COMM_NULL;
  int on_host = 0;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &on_host);
  MPI_Comm_free(&host);
  char address[4096] = {};
  if (options.process > 0) {
    MPI_Bcast(address, sizeof address, MPI_BYTE, 0, comm);
    joined();
    return ControlLinks::connect(options, address);
  }
  const bool alone = on_host == options.num_processes;
  return ControlLinks::listen(options, alone, [&](const std::string& text) {
    std::strncpy(address, text.c_str(), sizeof address - 1);
    MPI_Bcast(address, sizeof address, MPI_BYTE, 0, comm);
    joined();
  });
}

std::string sentence_of_late(std::chrono::milliseconds timeout) {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  return late_text(std::atoi(variable("OMPI_COMM_WORLD_RANK").c_str()), host_name(),
                   std::chrono::duration<double>(timeout).count(),
                   neighbours(variable("PMIX_NAMESPACE")));
}

// Some of MPI's transports between machines have room for only 23 bits.
void check_tags(MPI_Comm comm) {
  int* most = nullptr;
  int known = 0;
  MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&most), &known);
  constexpr int kMost = (1 << 30) - 1;  // of mpi_communicator.cpp's Tags
  if (known == 0 || *most >= kMost) return;
  throw UsageError(
      "the transport that MPI has chosen allows tags up to {}, but {} is needed; give mpirun the "
      "options --mca pml ob1, or set OMPI_MCA_pml=ob1 for sherd launch.",
      *most, kMost);
}

}  // namespace

std::unique_ptr<Processes> join_mpi(std::chrono::milliseconds timeout, const JoinCalls& calls) {
  const auto tell = [&] { calls.late(sentence_of_late(calls.for_mpi)); };
  auto watch =
      std::make_unique<JoinWatch>(calls.for_mpi, calls.late ? tell : std::function<void()>());
  if (!has_begun()) begin();
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  check_tags(comm);
  const auto joined = [&] {
    watch.reset();
    if (calls.connecting) calls.connecting();
  };
  return std::make_unique<MpiProcesses>(comm, connected(comm, timeout, joined));
}

void finish_mpi() {
  if (has_begun()) MPI_Finalize();
}

std::string mpi_library() {
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                     OMPI_RELEASE_VERSION);
}

}  // namespace sherd::sharding
