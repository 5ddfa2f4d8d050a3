/// A run's folder and what must be true of it after everything that happened so far.
///
/// The reference is the same run, never disturbed, with every checkpoint kept: whatever stage and
/// number of ranks continued it, and however often, a step's checkpoint and its loss are bit-identical.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/life/process.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

inline constexpr std::int64_t kLifeSteps = 24;

class RunModel {
 public:
  RunModel();

  const test::TempFolder& folder() const { return folder_; }
  std::string recipe() const { return folder_.file("life.yaml"); }
  std::string output() const { return folder_.file("run"); }
  std::string checkpoint(std::int64_t step) const;
  std::string reference_checkpoint(std::int64_t step) const;

  std::vector<std::int64_t> steps() const;       ///< of the checkpoints that are there, ascending
  std::vector<std::int64_t> good_steps() const;  ///< without those that were damaged
  std::int64_t newest_good() const;              ///< 0: none
  bool is_damaged(std::int64_t step) const { return damaged_.contains(step); }
  bool any_damaged() const { return !damaged_.empty(); }
  /// Everything in the folder that is used, as text: equal if nothing has changed.
  std::string contents() const;

  // What a user does to the folder.
  void damage(std::int64_t step, std::uint64_t random);
  void remove_checkpoint(std::int64_t step);
  void remove_damaged();
  void remove_file(const std::string& name);
  void remove_metrics_meanwhile();  ///< of a run that continues to write them
  void start_over();
  void move_away();
  void move_back();  ///< if it was moved; what was made in its place meanwhile has no checkpoint

  /// A run of this folder has ended: everything that it left must be as it should.
  void expect_right_after(const Ended& run);

 private:
  void forget_replaced();
  void expect_checkpoints(std::int64_t at_least);
  void expect_metrics(bool whole);
  std::map<std::int64_t, double> losses_in(const std::string& file, bool may_be_torn) const;

  test::TempFolder folder_{test::memory_folder()};
  std::map<std::int64_t, std::vector<std::string>> digests_;  ///< of the reference
  std::map<std::int64_t, double> losses_;                     ///< likewise
  std::set<std::int64_t> damaged_, known_;  ///< known: compared with the reference already
  std::int64_t promised_ = 0;               ///< the newest that may not be lost
  static constexpr std::int64_t kWhereItBegins = -1;
  std::int64_t metrics_from_ = 0;  ///< lines before this step were taken away
};

}  // namespace sherd::testing
