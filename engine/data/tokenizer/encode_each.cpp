#include "engine/data/tokenizer/encode_each.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "core/thread.h"

namespace sherd::tokenizer {

void encode_each(std::size_t count, const std::shared_ptr<const Tokenizer>& tokenizer,
                 const std::function<void(std::size_t, Encoder&)>& encode) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    std::optional<Encoder> encoder;
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        if (!encoder) encoder.emplace(tokenizer);
        encode(i, *encoder);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  const std::size_t num_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1,
                                                          std::max<std::size_t>(count, 1));
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < num_threads; ++i) helpers.emplace_back(work);
    } catch (const std::system_error& refused) {
      next = count;  // those that have started begin no other text
      throw_thread_refused("that encodes text", refused);
    }
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace sherd::tokenizer
