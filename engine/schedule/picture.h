/// A simulated schedule as a picture: a line per rank, time to the right, as textbooks draw pipelines.
///
///   rank 0  FFFFFFFF............BBBBFFBBBB
///           0 1 2 3             0   4 1
///
/// Only what computes is drawn: F forward, B backward, I input gradients, W weight gradients; '.' is
/// idle. Below stand the micro-batches. Where ranks have two chunks, the second has small letters; where
/// they have more, a third line names the chunk among its rank's own.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/schedule/simulate.h"

namespace sherd::schedule {

/// At most `columns` wide, with a line that explains the letters. The shortest action has a whole number
/// of columns, 1 at least; what is too long for one band of lines goes on in the next one. (Beyond
/// eight bands, actions may be too short to be seen.)
enum class TimeUnit { kMilliseconds, kShareOfStep };
std::string picture(const Schedule& schedule, const Simulation& run, int columns = 80,
                    TimeUnit unit = TimeUnit::kMilliseconds);

/// The same from spans that come one by one (simulate_each), after a run without spans.
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

/// The same as an <svg> element with its legend, for a page that has `kPictureStyle`. Each rectangle has
/// its action, begin and end in data-action, data-begin and data-end (nanoseconds).
std::string picture_svg(const Schedule& schedule, const Simulation& run,
                        TimeUnit unit = TimeUnit::kMilliseconds);
extern const std::string_view kPictureStyle;

/// The same as a Chrome trace (core/trace.h): a process per rank, and in it a thread each for what
/// computes, receives, gathers, reduces, and for each channel that it sends through.
std::string chrome_trace(const Schedule& schedule, const Simulation& run);

}  // namespace sherd::schedule
