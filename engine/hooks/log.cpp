#include "engine/hooks/log.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace sherd::engine {
namespace {

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

}  // namespace

HookLog::HookLog(checkpoint::Disk& disk, const std::string& output_dir,
                 const checkpoint::OutputLock* lock)
    : disk_(disk), path_(output_dir + "/hooks.log"), lock_(lock) {}

void HookLog::note(const std::string& text) {
  write(fmt::format("{}[{}] {}\n", in_line_ ? "\n" : "", now_text(), text));
}

void HookLog::write(std::string_view text) {
  if (text.empty()) return;
  try {
    if (lock_) lock_->check();
    if (!file_) file_ = checkpoint::open_plain(disk_, path_, O_WRONLY | O_CREAT);
    file_.write_at(text.data(), std::ssize(text), file_.status().bytes);
    in_line_ = text.back() != '\n';
  } catch (const DataError&) {
  }
}

}  // namespace sherd::engine
