// The power goes at any moment. All calls of a run that makes its folder, saves twice and removes
// the first checkpoint are recorded; for every prefix of them and for every subset of the effects
// that no fsync has made durable yet, the disk is put together as a file system may leave it, and
// must hold whole checkpoints only, and the ones acknowledged among them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/power_loss_model.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using test::AfterPowerLoss;
using test::DiskCall;
using test::HookedDisk;
using test::ModelDisk;
using test::Node;

struct Event {
  DiskCall call;
  std::int64_t acknowledged = 0;  ///< instead of a call: this step was reported as saved
  std::int64_t released = 0;      ///< instead of a call: from here on this step may be gone
  std::size_t version = 0;        ///< of what was acknowledged, in Recording::steps
};
using Trace = std::vector<Event>;
using Files = std::map<std::string, std::string>;  ///< of one directory: name -> bytes

struct Recording {
  Trace trace;
  /// What a committed directory of this name may hold: what was saved there, and what damage made
  /// of it, in the order in which these came to be.
  std::map<std::string, std::vector<Files>> steps;
  Files damaged;  ///< if not empty: it must not be lost
};

Files files_in(const std::string& directory) {
  Files files;
  for (const std::string& name : list_directory(posix_disk(), directory)) {
    files[name] = test::file_bytes(directory + "/" + name);
  }
  return files;
}

/// A run in a folder of its own whose calls are written down.
class Recorder {
 public:
  explicit Recorder(int world)
      : disk_({}, [this](const DiskCall& call, std::int64_t result) { write_down(call, result); }),
        directory_((make_directory(disk_, folder_.file("run")),
                    prepare_checkpoints(disk_, folder_.file("run")))),
        save_(directory_, world, test::small_tensors(), disk_) {}

  void save(std::int64_t step) {
    const test::SaveOutcome outcome = save_.save(step);
    EXPECT_TRUE(outcome.committed) << outcome.what();
    EXPECT_EQ(save_.complaint_about_step(step), "");
    std::vector<Files>& versions = recording_.steps[step_directory_name(step)];
    recording_.trace.push_back({{}, step, 0, versions.size()});
    versions.push_back(files_in(path_of(step)));
  }
  void remove(std::int64_t step) {
    recording_.trace.push_back({{}, 0, step});
    remove_checkpoint(disk_, directory_, step, "tag");
  }
  /// The disk itself changes bytes of a shard, long after they were durable.
  void damage(std::int64_t step) {
    const std::string path = path_of(step) + "/" + shard_name(0, save_.world());
    const File shard(posix_disk(), path, O_WRONLY);
    DiskCall damage{"damage", path, "", 0, shard.status().bytes / 2, "damage"};
    shard.write_at(damage.bytes.data(), std::ssize(damage.bytes), damage.offset);
    recording_.trace.push_back({{}, 0, step});
    write_down(damage, 0);
    recording_.damaged = files_in(path_of(step));
    recording_.steps[step_directory_name(step)].push_back(recording_.damaged);
  }
  const Recording& recording() const { return recording_; }

 private:
  std::string path_of(std::int64_t step) const {
    return directory_ + "/" + step_directory_name(step);
  }
  void write_down(const DiskCall& call, std::int64_t result) {
    if (result < 0) return;
    recording_.trace.push_back({test::as_played(call, result, folder_.path()), 0, 0});
  }

  Recording recording_;
  test::TempFolder folder_;
  HookedDisk disk_;
  std::string directory_;
  test::SaveWorld save_;
};

Recording record(int world) {
  Recorder recorder(world);
  recorder.save(1);
  recorder.save(2);
  recorder.remove(1);
  return recorder.recording();
}

/// A resume has fallen back from a damaged step 2 to step 1, and saves step 2 again.
Recording record_over_damage(int world) {
  Recorder recorder(world);
  recorder.save(1);
  recorder.save(2);
  recorder.damage(2);
  recorder.save(2);
  return recorder.recording();
}

using Acknowledged = std::map<std::int64_t, std::size_t>;  ///< step -> version

/// Looks at every state that a power loss at this moment may leave.
class Examination {
 public:
  explicit Examination(const Recording& recording) : recording_(recording) {}

  void damage_is_done() { damage_done_ = true; }

  /// "" or the first violation. `must` are the steps that were acknowledged and not released, with
  /// the version that was.
  std::string violation(const ModelDisk& disk, const Acknowledged& must) {
    // root / run / checkpoints, each of which may not be there at all
    for (const auto& root : AfterPowerLoss::names_of(*disk.root())) {
      const auto run = root.find("run");
      if (run == root.end()) {
        ++num_states_;
        if (!must.empty()) return "the run's folder is gone";
        continue;
      }
      for (const auto& names : AfterPowerLoss::names_of(*run->second)) {
        const auto checkpoints = names.find("checkpoints");
        if (checkpoints == names.end()) {
          ++num_states_;
          if (!must.empty()) return "checkpoints/ is gone";
          continue;
        }
        for (const auto& steps : AfterPowerLoss::names_of(*checkpoints->second)) {
          if (std::string found = look_at(steps, must); !found.empty()) return found;
        }
      }
    }
    return "";
  }
  std::int64_t num_states() const { return num_states_; }

 private:
  std::string look_at(const AfterPowerLoss::Names& steps, const Acknowledged& must) {
    ++num_states_;
    for (const auto& [step, version] : must) {
      if (!steps.contains(step_directory_name(step))) {
        return step_directory_name(step) + " was acknowledged and is lost";
      }
    }
    bool damaged_is_there = recording_.damaged.empty() || !damage_done_;
    for (const auto& [name, node] : steps) {
      damaged_is_there = damaged_is_there || surely_holds(*node, recording_.damaged);
      if (!name.starts_with("step-")) continue;
      for (const auto& files : AfterPowerLoss::names_of(*node)) {
        ++num_states_;
        const auto acknowledged = must.find(*step_of_directory(name));
        const std::size_t oldest = acknowledged == must.end() ? 0 : acknowledged->second;
        if (std::string found = unlike_all(name, oldest, files); !found.empty()) return found;
      }
    }
    return damaged_is_there ? "" : "the damaged checkpoint is lost";
  }

  bool surely_holds(const Node& directory, const Files& files) {
    for (const auto& names : AfterPowerLoss::names_of(directory)) {
      if (!partial("", names, files).empty()) return false;
    }
    return true;
  }

  /// "" if the directory is surely one that may have this step's name.
  std::string unlike_all(const std::string& step, std::size_t oldest,
                         const AfterPowerLoss::Names& files) {
    std::string complaint;
    const std::vector<Files>& versions = recording_.steps.at(step);
    for (std::size_t version = oldest; version < versions.size(); ++version) {
      complaint = partial(step, files, versions[version]);
      if (complaint.empty()) return "";
    }
    return complaint;
  }

  static std::string partial(const std::string& step, const AfterPowerLoss::Names& files,
                             const Files& whole) {
    for (const auto& [name, bytes] : whole) {
      const auto found = files.find(name);
      if (found == files.end()) return step + " may lack " + name;
      if (!AfterPowerLoss::is_surely(*found->second, bytes)) {
        return step + " may have wrong bytes in " + name;
      }
    }
    if (files.size() != whole.size()) return step + " may have files that aren't its own";
    return "";
  }

  const Recording& recording_;
  bool damage_done_ = false;
  std::int64_t num_states_ = 0;
};

struct Verdict {
  std::string violation;  ///< with the call before which the power went
  std::int64_t num_states = 0;
};

/// `left_out` is the index of an event that the file system never hears of, or -1.
Verdict examine(const Recording& recording, int left_out) {
  ModelDisk disk;
  Examination examination(recording);
  Acknowledged must;
  for (int i = 0; i < static_cast<int>(recording.trace.size()); ++i) {
    const Event& event = recording.trace[static_cast<std::size_t>(i)];
    if (event.acknowledged > 0) must[event.acknowledged] = event.version;
    if (event.released > 0) must.erase(event.released);
    if (!event.call.name.empty() && i != left_out) disk.play(event.call);
    if (event.call.name == "damage") examination.damage_is_done();
    if (std::string found = examination.violation(disk, must); !found.empty()) {
      return {
          "power lost after event " + std::to_string(i) + " (" + event.call.what() + "): " + found,
          examination.num_states()};
    }
  }
  return {"", examination.num_states()};
}

TEST(PowerLoss, LeavesWholeCheckpointsOnlyAndTheAcknowledgedOnes) {
  for (const int world : {1, 2}) {
    const Recording recording = record(world);
    const Verdict verdict = examine(recording, -1);
    EXPECT_EQ(verdict.violation, "") << world << " ranks";
    // The last one is from a trace that really saved, acknowledged and removed.
    EXPECT_GT(recording.trace.size(), 60u);
    EXPECT_GT(verdict.num_states, 500);
    RecordProperty("states_" + std::to_string(world), static_cast<int>(verdict.num_states));
  }
}

// The model would be worth nothing if it didn't see what is missing: each fsync is needed, and the
// loss of any of them is found.
TEST(PowerLoss, LosesSomethingWithoutAnyOneFsync) {
  const Recording recording = record(2);
  int num_fsyncs = 0;
  for (int i = 0; i < static_cast<int>(recording.trace.size()); ++i) {
    const DiskCall& call = recording.trace[static_cast<std::size_t>(i)].call;
    if (call.name != "fsync") continue;
    ++num_fsyncs;
    EXPECT_NE(examine(recording, i).violation, "") << "unneeded: " << i << " " << call.what();
  }
  // Two for the folders; per save two shards, index, manifest and two directories; one removal.
  EXPECT_EQ(num_fsyncs, 2 + 2 * 6 + 1);
}

TEST(PowerLoss, WhileADamagedCheckpointIsSetAsideLosesNeitherItNorTheNewOne) {
  const Recording recording = record_over_damage(2);
  EXPECT_EQ(examine(recording, -1).violation, "");
  int num_fsyncs = 0;
  for (int i = 0; i < static_cast<int>(recording.trace.size()); ++i) {
    const DiskCall& call = recording.trace[static_cast<std::size_t>(i)].call;
    if (call.name != "fsync") continue;
    ++num_fsyncs;
    EXPECT_NE(examine(recording, i).violation, "") << "unneeded: " << i << " " << call.what();
  }
  // Two for the folders, three saves, and one of the directory when the damaged one has moved.
  EXPECT_EQ(num_fsyncs, 2 + 3 * 6 + 1);
}

// And it sees an order that is wrong: the acknowledgement before the last fsync, the rename before
// the shards' own.
TEST(PowerLoss, FindsARenameThatComesTooEarly) {
  Recording recording = record(1);
  Trace& trace = recording.trace;
  const auto rename = std::find_if(trace.begin(), trace.end(), [](const Event& event) {
    return event.call.name == "rename_new";
  });
  ASSERT_NE(rename, trace.end());
  std::swap(*rename, *(rename - 3));
  EXPECT_NE(rename->call.name, "rename_new");
  // Paths of calls that follow name the temporary directory, so only the prefix up to it counts.
  trace.erase(rename - 2, trace.end());
  EXPECT_NE(examine(recording, -1).violation, "");
}

}  // namespace
}  // namespace sherd::checkpoint
