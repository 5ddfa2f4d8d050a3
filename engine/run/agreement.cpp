#include "engine/run/agreement.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "checkpoint/writer.h"
#include "core/error.h"
#include "engine/data/fingerprint.h"
#include "engine/data/mapped_file.h"
#include "engine/data/utf8.h"
#include "engine/launch/system_info.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"
#include "kernels/isa.h"
#include "kernels/libraries.h"

namespace sherd::engine {
namespace {

std::string host_of(const sharding::Processes& processes, std::size_t process) {
  return fmt::format("process {} on {}", process, processes.hosts()[process]);
}

std::vector<Fact> parsed(const std::string& text) {
  std::vector<Fact> facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    facts.push_back({line.substr(0, tab), tab == std::string::npos ? "" : line.substr(tab + 1)});
  }
  return facts;
}

// All instruction sets give the same bits, except AMX (kernels/isa.h). Which of the others a process
// takes may follow from a measurement, so it can differ from process to process.
std::string bits_of(kernels::Isa isa) {
  return isa == kernels::Isa::kAmx ? "amx" : "one without AMX";
}

}  // namespace

std::vector<Fact> facts_of_run(const Recipe& recipe,
                               const std::vector<data::StageFingerprint>& data) {
  const data::MappedFile program("/proc/self/exe");
  std::vector<Fact> facts = {{"the program", fmt::format("sherd {} ({:016x})", version(),
                                                         data::fingerprint_of(program.bytes()))},
                             {"the instruction set", bits_of(kernels::isa())},
                             {"the table of matmul algorithms",
                              fmt::format("{:016x}", kernels::matmul_table_fingerprint())}};
  for (const Field& field : recipe_fields()) {
    facts.push_back({std::string(field.key), format_value(field, recipe)});
  }
  for (const data::StageFingerprint& stage : data) {
    facts.push_back({"the data", fmt::format("{:016x}", stage.hash)});
  }
  return facts;
}

void require_same(sharding::Processes& processes, const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) text += fmt::format("{}\t{}\n", fact.name, fact.value);
  // Fingerprints, since thousands of processes may exchange them.
  sharding::ControlLinks& links = processes.links();
  const auto prints =
      links.all_gather("what ranks must have in common",
                       fmt::format("{:016x}", data::fingerprint_of(data::as_bytes(text))));
  const auto other = std::ranges::find_if(prints, [&](const auto& p) { return p != prints[0]; });
  if (other == prints.end()) return;
  const auto process = static_cast<std::size_t>(other - prints.begin());
  const auto own = static_cast<std::size_t>(processes.index());
  const auto texts = links.all_gather("where ranks differ", own == 0 || own == process ? text : "");
  const std::vector<Fact> first = parsed(texts[0]), differing = parsed(texts[process]);
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::string value = i < differing.size() ? differing[i].value : "missing";
    if (value == first[i].value) continue;
    throw UsageError("ranks don't agree before step 0: {} is {} on {}, and {} on {}.",
                     first[i].name, first[i].value, host_of(processes, 0), value,
                     host_of(processes, process));
  }
}

OutputFolder shared_output_folder(sharding::Processes* processes, checkpoint::Disk& disk,
                                  const std::string& path) {
  if (!processes) return {disk, path};
  sharding::ControlLinks& links = processes->links();
  const auto probe = [&](const std::string& uuid, std::size_t process) {
    return fmt::format("{}/.probe-{}-{}", path, process, uuid);
  };
  if (processes->index() > 0) {
    const std::string uuid = links.all_gather("the output folder is made", "")[0];
    OutputFolder folder = OutputFolder::of_another_process(disk, path);
    const std::string file = probe(uuid, static_cast<std::size_t>(processes->index()));
    checkpoint::write_new_file(disk, file, "");
    links.all_gather("probes are written", "");
    const std::string problem = links.all_gather("probes are seen", "")[0];
    ::unlink(file.c_str());
    if (!problem.empty()) throw UsageError("{}", problem);
    return folder;
  }
  OutputFolder folder(disk, path);
  const std::string uuid = checkpoint::make_save_uuid();
  links.all_gather("the output folder is made", uuid);
  links.all_gather("probes are written", "");
  std::string problem;
  for (std::size_t process = 1; process < processes->hosts().size(); ++process) {
    if (::access(probe(uuid, process).c_str(), F_OK) == 0 || !problem.empty()) continue;
    problem = fmt::format(
        "run.output_dir {}: {} and {} write to different folders of that name. Use a folder that "
        "all "
        "machines share.",
        path, host_of(*processes, process), host_of(*processes, 0));
  }
  links.all_gather("probes are seen", problem);
  if (!problem.empty()) throw UsageError("{}", problem);
  return folder;
}

}  // namespace sherd::engine
