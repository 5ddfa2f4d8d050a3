#include "core/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

namespace sherd {
namespace {

std::string escaped(const std::string& text) {
  std::string json;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += fmt::format("\\{}", c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  return json;
}

}  // namespace

void Trace::add(int rank, std::string_view stream, std::string_view label, Clock::time_point begin,
                Clock::time_point end) {
  if (!active_) return;
  std::lock_guard lock(mutex_);
  spans_.push_back({rank, std::string(stream), std::string(label), begin, end});
}

std::vector<Trace::Span> Trace::spans() const {
  std::lock_guard lock(mutex_);
  return spans_;
}

std::string Trace::to_chrome_json() const {
  const std::vector<Span> spans = this->spans();
  Clock::time_point origin = Clock::time_point::max();
  std::map<std::pair<int, std::string>, int> threads;
  for (const Span& span : spans) {
    origin = std::min(origin, span.begin);
    threads.try_emplace({span.rank, span.stream}, static_cast<int>(threads.size()));
  }
  const auto microseconds = [](Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  };
  std::string json = "[\n";
  for (const auto& [key, thread] : threads) {
    json +=
        fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}},)"
                    "\n"
                    R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
                    "\n",
                    key.first, key.first, key.first, thread, escaped(key.second));
  }
  for (const Span& span : spans) {
    json += fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}},)"
                        "\n",
                        escaped(span.label), span.rank, threads.at({span.rank, span.stream}),
                        microseconds(span.begin - origin), microseconds(span.end - span.begin));
  }
  if (json.ends_with(",\n")) json.erase(json.size() - 2, 1);
  return json + "]\n";
}

}  // namespace sherd
