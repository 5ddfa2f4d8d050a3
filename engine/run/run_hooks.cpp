#include "engine/run/run_hooks.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <new>

#include "engine/launch/stop_signals.h"

namespace sherd::engine {
namespace {

using Clock = HookOptions::Clock;

// Once the training is over, the signal's alarm has nothing to guard but the hooks. A signal may
// still come, so it is asked for again and again.
class HookTimeLeft {
 public:
  std::optional<Clock::time_point> end() {
    const std::lock_guard lock(mutex_);
    if (stop_request() != StopRequest::kRequeue) return {};
    if (const std::chrono::seconds left = cancel_stop_deadline(); left.count() > 0) {
      deadline_ = Clock::now() + left;
      end_ = *deadline_ - std::min<std::chrono::milliseconds>(left / 2, kToEnd);
    }
    return end_;
  }
  // What comes after a wait has the rest of the time.
  void resume() {
    const std::lock_guard lock(mutex_);
    if (!deadline_) return;
    resume_stop_deadline(std::chrono::ceil<std::chrono::seconds>(*deadline_ - Clock::now()));
  }

 private:
  static constexpr std::chrono::milliseconds kToEnd{5000};
  std::mutex mutex_;
  std::optional<Clock::time_point> deadline_, end_;
};

std::string absolute(const std::string& path) {
  std::error_code error;
  const auto full = std::filesystem::absolute(path, error);
  return error ? path : full.lexically_normal().string();
}

}  // namespace

std::unique_ptr<Hooks> run_hooks(const Recipe& recipe, const OutputFolder& output,
                                 Progress& progress) {
  if (!recipe.hooks.any()) return nullptr;
  HookOptions options;
  options.keys = recipe.hooks;
  options.facts.run = recipe.run.name;
  options.facts.output_dir = absolute(output.path());
  options.facts.max_steps = recipe.training.max_steps;
  options.disk = &output.disk();
  options.lock = output.lock();
  options.say = [&progress](const std::string& text) { progress.message(text); };
  const auto left = std::make_shared<HookTimeLeft>();
  options.deadline = [left] { return left->end(); };
  options.waited = [left] { left->resume(); };
  return std::make_unique<Hooks>(std::move(options));
}

void end_hooks(Hooks* hooks, const std::exception_ptr& error) {
  if (!hooks) return;
  try {
    if (!error) return hooks->end(0, "");
    std::rethrow_exception(error);
  } catch (const Error& failed) {
    hooks->end(failed.exit_code(), failed.what());
  } catch (const std::bad_alloc&) {
    hooks->end(5, "no memory is left");
  } catch (const std::exception& failed) {
    hooks->end(1, failed.what());
  }
}

}  // namespace sherd::engine
