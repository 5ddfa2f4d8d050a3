/// A file system that the power leaves, as a model: every disk that may be found after it.
///
/// fsync of a file makes what was written to it durable, fsync of a directory the names in it. What isn't
/// durable may have happened or not, independently, writes in part as well. A rename is one effect: it
/// has happened or it hasn't.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/checkpoint/support/hooked_disk.h"

namespace sherd::test {

inline std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}
inline std::string name_in(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

/// A call that succeeded, with its paths as if `folder` were "/root", and only the bytes that were
/// written: what ModelDisk plays.
inline DiskCall as_played(const DiskCall& call, std::int64_t result, const std::string& folder) {
  DiskCall plain = call;
  for (std::string* path : {&plain.path, &plain.to}) {
    if (path->ends_with("/..")) *path = parent_of(parent_of(*path));
    if (path->starts_with(folder)) *path = "/root" + path->substr(folder.size());
  }
  if (plain.writes()) plain.bytes.resize(static_cast<std::size_t>(result));
  return plain;
}

/// A file or a directory: what is durable of it, and what isn't yet.
struct Node {
  struct Write {
    std::int64_t offset = 0;
    std::string bytes;
  };
  /// A change of names in a directory: `gone` goes, `name` comes; either may be empty.
  struct Change {
    std::string gone, name;
    std::shared_ptr<Node> node;
  };

  bool is_directory = false;
  std::string bytes;
  std::vector<Write> pending_writes;
  std::map<std::string, std::shared_ptr<Node>> names;
  std::vector<Change> pending_changes;

  // As processes see it: everything has happened.
  std::map<std::string, std::shared_ptr<Node>> seen;
};

class ModelDisk {
 public:
  ModelDisk() : root_(std::make_shared<Node>()) { root_->is_directory = true; }

  const std::shared_ptr<Node>& root() const { return root_; }

  void play(const DiskCall& call) {
    if (call.name == "mkdir") {
      add(call.path, true);
    } else if (call.name == "open" && (call.flags & O_CREAT)) {
      if (!find(parent_of(call.path))->seen.contains(name_in(call.path))) add(call.path, false);
    } else if (call.name == "truncate") {
      FAIL() << "the model cuts nothing off";
    } else if (call.name == "pwrite") {
      find(call.path)->pending_writes.push_back({call.offset, call.bytes});
    } else if (call.name == "damage") {
      write(find(call.path)->bytes, {call.offset, call.bytes});
    } else if (call.name == "fsync") {
      sync(*find(call.path));
    } else if (call.name == "unlink" || call.name == "rmdir") {
      Node& parent = *find(parent_of(call.path));
      parent.pending_changes.push_back({name_in(call.path), "", nullptr});
      parent.seen.erase(name_in(call.path));
    } else if (call.name == "rename" || call.name == "rename_new") {
      Node& parent = *find(parent_of(call.path));
      ASSERT_EQ(parent_of(call.path), parent_of(call.to)) << "the model has no moves";
      const std::shared_ptr<Node> node = parent.seen.at(name_in(call.path));
      parent.pending_changes.push_back({name_in(call.path), name_in(call.to), node});
      parent.seen.erase(name_in(call.path));
      parent.seen[name_in(call.to)] = node;
    }
  }

 private:
  std::shared_ptr<Node> find(const std::string& path) const {
    if (path == "/root") return root_;
    return find(parent_of(path))->seen.at(name_in(path));
  }
  void add(const std::string& path, bool is_directory) {
    Node& parent = *find(parent_of(path));
    auto node = std::make_shared<Node>();
    node->is_directory = is_directory;
    parent.pending_changes.push_back({"", name_in(path), node});
    parent.seen[name_in(path)] = node;
  }
  static void write(std::string& bytes, const Node::Write& write) {
    const std::size_t end = static_cast<std::size_t>(write.offset) + write.bytes.size();
    if (bytes.size() < end) bytes.resize(end, '\0');
    bytes.replace(static_cast<std::size_t>(write.offset), write.bytes.size(), write.bytes);
  }
  static void change(std::map<std::string, std::shared_ptr<Node>>& names,
                     const Node::Change& change) {
    if (!change.gone.empty()) names.erase(change.gone);
    if (!change.name.empty()) names[change.name] = change.node;
  }
  static void sync(Node& node) {
    for (const Node::Write& pending : node.pending_writes) write(node.bytes, pending);
    for (const Node::Change& pending : node.pending_changes) change(node.names, pending);
    node.pending_writes.clear();
    node.pending_changes.clear();
  }

  std::shared_ptr<Node> root_;
  friend class AfterPowerLoss;
};

/// All states that the power may leave: the search decides about pending effects as it comes to
/// them, and only where a step- directory's contents depend on them. What no reader would look at
/// isn't multiplied out, so the number of states stays small though none is left out.
class AfterPowerLoss {
 public:
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  /// Every set of names that a directory may have.
  static std::vector<Names> names_of(const Node& directory) {
    std::vector<Names> all;
    const std::size_t pending = directory.pending_changes.size();
    EXPECT_LE(pending, 16u);
    for (std::uint32_t mask = 0; mask < (1u << pending); ++mask) {
      Names names = directory.names;
      for (std::size_t i = 0; i < pending; ++i) {
        if (mask & (1u << i)) ModelDisk::change(names, directory.pending_changes[i]);
      }
      if (std::find(all.begin(), all.end(), names) == all.end()) all.push_back(std::move(names));
    }
    return all;
  }

  /// As processes see it.
  static std::string seen_bytes(const Node& file) {
    std::string bytes = file.bytes;
    for (const Node::Write& pending : file.pending_writes) ModelDisk::write(bytes, pending);
    return bytes;
  }

  /// Whether every state of the file has these bytes: each pending write missing, torn or made.
  static bool is_surely(const Node& file, const std::string& bytes) {
    return surely(file, [&bytes](const std::string& made) { return made == bytes; });
  }

  /// Whether every state of the file is as `holds` says.
  template <class Holds>
  static bool surely(const Node& file, const Holds& holds) {
    std::size_t states = 1;
    for (std::size_t i = 0; i < file.pending_writes.size(); ++i) states *= 3;
    for (std::size_t state = 0; state < states; ++state) {
      std::string made = file.bytes;
      std::size_t rest = state;
      for (const Node::Write& pending : file.pending_writes) {
        Node::Write part = pending;
        const std::size_t choice = rest % 3;
        rest /= 3;
        if (choice == 1) part.bytes.resize(part.bytes.size() / 2);
        if (choice > 0) ModelDisk::write(made, part);
      }
      if (!holds(made)) return false;
    }
    return true;
  }
};

}  // namespace sherd::test
