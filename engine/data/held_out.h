/// Which of a text's documents, or examples, are held out for validation: evenly among all.
#pragma once

#include <cstdint>

namespace sherd::data {

/// ceil(count * fraction), but at least one stays for training. `fraction` is in [0, 1).
std::int64_t num_held_out(std::int64_t count, double fraction);

/// `held_out`: what num_held_out returned.
bool is_held_out(std::int64_t index, std::int64_t held_out, std::int64_t count);

}  // namespace sherd::data
