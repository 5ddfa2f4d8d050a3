/// A recipe describes one training completely: model, data, optimizer, ranks, checkpoints.
///
///   sherd::Recipe recipe = sherd::Recipe::load("recipes/quickstart.yaml");
///   recipe.set("training.max_steps", "20").set_ranks(4);
///   std::puts(recipe.get("zero_optimization.stage").c_str());   // "3"
///
/// docs/recipe.md lists every key. A recipe is kept as written until one of its values is needed;
/// then defaults are filled in and everything is checked. So problems come from `check`, `get` and
/// `yaml`, and from whatever uses the recipe: all problems at once, as one UsageError.
///
/// Copies are independent. Different threads may use different recipes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

class SHERD_API Recipe {
 public:
  /// A file in YAML.
  /// Errors   UsageError if it can't be read
  static Recipe load(const std::string& path);
  /// The text of a recipe. `name` is what errors call it.
  static Recipe parse(const std::string& yaml, const std::string& name = "recipe");

  Recipe(const Recipe& other);
  Recipe(Recipe&& other) noexcept;
  Recipe& operator=(const Recipe& other);
  Recipe& operator=(Recipe&& other) noexcept;
  ~Recipe();

  /// Sets a key, such as "training.max_steps", as `--set key=value` does. Later calls win.
  Recipe& set(const std::string& key, const std::string& value);
  /// The number of ranks that shard state: parallelism.data_parallel_shard_degree.
  Recipe& set_ranks(std::int64_t ranks);

  /// Errors   UsageError with one line for each problem
  void check() const;
  /// A key's value with defaults filled in, as it is written in YAML; "" if it has none.
  /// Errors   those of `check`; UsageError if there is no such key
  std::string get(const std::string& key) const;
  /// The whole recipe with every value. Each line has its origin as a comment.
  std::string yaml() const;
  /// What a user should know about the recipe, one line each.
  std::vector<std::string> notes() const;

  struct Request;  ///< the library's own
  const Request& request() const { return *request_; }

 private:
  explicit Recipe(std::unique_ptr<Request> request);
  std::unique_ptr<Request> request_;
};

}  // namespace sherd::SHERD_ABI
