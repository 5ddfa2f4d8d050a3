/// A simulated schedule as a picture: one line per rank, with time to the right, as textbooks draw
/// pipelines.
///
///   rank 0  FFFFFFFF............BBBBFFBBBB
///           0 1 2 3             0   4 1
///
/// Only compute actions are drawn: F forward, B backward, I input gradients, W weight gradients;
/// '.' is idle. The micro-batches are below. If ranks have two chunks, the second has small
/// letters; if they have more, a third line has the chunk's index on its rank.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/schedule/simulate.h"

namespace sherd::schedule {

/// At most `columns` wide, with a line that explains the letters. The shortest action has a whole
/// number of columns, at least 1. A picture too long for one band of lines continues in the next
/// one. (Beyond eight bands, actions may be too short to be visible.)
enum class TimeUnit { kMilliseconds, kShareOfStep };
std::string picture(const Schedule& schedule, const Simulation& run, int columns = 80,
                    TimeUnit unit = TimeUnit::kMilliseconds);

/// The same from spans passed one by one (simulate_each), after a run without spans.
class TextPicture {
 public:
  TextPicture(const Schedule& schedule, const Simulation& run, int columns = 80,
              TimeUnit unit = TimeUnit::kMilliseconds);
  ~TextPicture();
  void add(std::size_t rank, std::size_t position, const Span& span);
  std::string text() const;

 private:
  class Canvas;
  const Schedule& schedule_;
  std::unique_ptr<Canvas> canvas_;
};

/// The same as an <svg> element in a box that scrolls sideways, and its legend, for a page that has
/// `kPictureStyle`. Each rectangle has its action, begin and end in data-action, data-begin and
/// data-end (nanoseconds).
std::string picture_svg(const Schedule& schedule, const Simulation& run,
                        TimeUnit unit = TimeUnit::kMilliseconds);
extern const std::string_view kPictureStyle;

/// The same as a Chrome trace (core/trace.h): a process per rank, with threads for computation,
/// receives, gathers, reductions, and each channel that it sends through.
std::string chrome_trace(const Schedule& schedule, const Simulation& run);

}  // namespace sherd::schedule
