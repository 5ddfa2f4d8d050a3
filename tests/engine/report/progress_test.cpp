#include "engine/report/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

namespace sherd::engine {
namespace {

ProgressUpdate example() {
  ProgressUpdate update;
  update.step = 120;
  update.max_steps = 2000;
  update.loss = 2.43123;
  update.tokens_per_s = 41234;
  update.exposed_comm_ms = 0.41;
  update.memory_bytes = std::int64_t{212} << 20;
  update.time_left = Seconds(72);
  return update;
}

constexpr const char* kExampleLine =
    "step 120/2000  loss 2.4312  41.2k tok/s  exposed 0.4 ms  212 MiB  1m 12s left";

/// What `Progress` writes while `use` runs.
std::string output_of(bool in_place, int width, const std::function<void(Progress&)>& use) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  {
    Progress progress(out, in_place, width);
    use(progress);
  }
  std::fclose(out);
  const std::string written(text, size);
  std::free(text);
  return written;
}

TEST(FormatProgress, ShowsEveryField) {
  EXPECT_EQ(format_progress(example(), 200), kExampleLine);
  ProgressUpdate update = example();
  update.comm_cpu_ms = 12.2;
  update.mfu = 0.412;
  update.time_left.reset();
  EXPECT_EQ(
      format_progress(update, 200),
      "step 120/2000  loss 2.4312  41.2k tok/s  41% MFU  exposed 0.4 ms  comm cpu 12 ms  212 MiB");
  EXPECT_EQ(format_progress({.step = 0, .max_steps = 2000}, 200), "step 0/2000");
  // One axis is all that is exposed.
  update = example();
  update.exposed_by_axis = {{"shard", 0.41}};
  EXPECT_EQ(format_progress(update, 200), kExampleLine);
  update.exposed_by_axis = {{"shard", 0.11}, {"tensor", 0.29}};
  EXPECT_EQ(format_progress(update, 200),
            "step 120/2000  loss 2.4312  41.2k tok/s  exposed 0.4 ms (shard 0.1 ms, tensor 0.3 ms)"
            "  212 MiB  1m 12s left");
}

TEST(FormatProgress, LeavesOutWholeFieldsWhereSpaceIsShort) {
  EXPECT_EQ(format_progress(example(), 75),
            "step 120/2000  loss 2.4312  41.2k tok/s  exposed 0.4 ms  1m 12s left");
  EXPECT_EQ(format_progress(example(), 60), "step 120/2000  loss 2.4312  41.2k tok/s  1m 12s left");
  EXPECT_EQ(format_progress(example(), 28), "step 120/2000  loss 2.4312");
  EXPECT_EQ(format_progress(example(), 10), "step 120/2");
  for (int width = 0; width < 120; ++width) {
    EXPECT_LE(format_progress(example(), width).size(), static_cast<std::size_t>(width));
  }
}

TEST(Progress, WritesPlainLinesWhereThereIsNoTerminal) {
  EXPECT_EQ(output_of(false, 0,
                      [](Progress& progress) {
                        progress.update(example());
                        progress.log(example());
                        progress.message("step 120: val_loss 2.5");
                        progress.update(example());
                        progress.log(example());
                      }),
            std::string(kExampleLine) + "\nstep 120: val_loss 2.5\n" + kExampleLine + "\n");
}

TEST(Progress, OnATerminalTheLogStaysAndOnlyTheLastLineMoves) {
  const std::string clear = "\r\x1b[K";
  const std::string line = kExampleLine;
  EXPECT_EQ(output_of(true, 100,
                      [](Progress& progress) {
                        progress.message("begin");
                        progress.update(example());
                        progress.log(example());
                        progress.update(example());
                        progress.message("step 120: val_loss 2.5");
                        progress.update(example());
                        progress.finish();
                        progress.message("end");
                      }),
            "begin\n" + clear + line + clear + line + "\n" + clear + line + clear +
                "step 120: val_loss 2.5\n" + line + clear + line + clear + "end\n");
}

TEST(Progress, TakesTheMovingLineAwayWhenItGoes) {
  const std::string written = output_of(true, 40, [](Progress& p) { p.update(example()); });
  EXPECT_EQ(written, "\r\x1b[Kstep 120/2000  loss 2.4312  1m 12s left\r\x1b[K");
}

TEST(Progress, TakesAnythingButATerminalForAPlainOutput) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = std::tmpfile();
  ASSERT_TRUE(out);
  Progress(out).log(example());
  std::rewind(out);
  EXPECT_EQ(::getline(&text, &size, out), static_cast<ssize_t>(std::strlen(kExampleLine)) + 1);
  EXPECT_EQ(std::string(text), std::string(kExampleLine) + "\n");
  std::free(text);
  std::fclose(out);
}

TEST(Progress, KeepsToTheWidthOfItsTerminal) {
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(controller, 0);
  ASSERT_EQ(::grantpt(controller), 0);
  ASSERT_EQ(::unlockpt(controller), 0);
  const winsize size{.ws_row = 24, .ws_col = 45, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(controller, TIOCSWINSZ, &size), 0);
  std::FILE* out = ::fdopen(::open(::ptsname(controller), O_WRONLY | O_NOCTTY), "w");
  ASSERT_TRUE(out);

  ::setenv("TERM", "xterm", 1);
  Progress(out).log(example());
  ::setenv("TERM", "dumb", 1);
  Progress(out).message("plain");

  std::string written;
  while (!written.ends_with("plain\r\n")) {
    std::array<char, 256> piece{};
    const ssize_t count = ::read(controller, piece.data(), piece.size());
    ASSERT_GT(count, 0);
    written.append(piece.data(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(written, "step 120/2000  loss 2.4312  1m 12s left\r\nplain\r\n");
  std::fclose(out);
  ::close(controller);
}

// A pipe whose other end isn't read for now.
class PausedReader {
 public:
  PausedReader() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    ::fcntl(ends_[1], F_SETPIPE_SZ, 4096);
    out_ = ::fdopen(ends_[1], "w");
  }
  ~PausedReader() { ::close(ends_[0]); }
  std::FILE* out() { return out_; }
  // Everything until the other end closes, which `finish` does meanwhile.
  std::string read(const std::function<void()>& finish) {
    std::thread writer([&] {
      finish();
      std::fclose(out_);
    });
    std::string all;
    char bytes[65536];
    for (ssize_t got = 0; (got = ::read(ends_[0], bytes, sizeof bytes)) > 0;) {
      all.append(bytes, static_cast<std::size_t>(got));
    }
    writer.join();
    return all;
  }

 private:
  std::array<int, 2> ends_{};
  std::FILE* out_ = nullptr;
};

TEST(Progress, DoesntWaitForAReaderThatPauses) {
  PausedReader reader;
  Progress progress(reader.out(), false, 0);
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    const std::string line = fmt::format("line {}", i);
    progress.message(line);
    expected += line + "\n";
  }
  progress.message(std::string(20'000, 'x'));
  expected += std::string(20'000, 'x') + "\n";
  EXPECT_EQ(reader.read([&] { progress.finish(); }), expected);
}

TEST(Progress, CountsTheLinesThatNobodyReadInTime) {
  PausedReader reader;
  Progress progress(reader.out(), false, 0);
  for (int i = 0; i < 1100; ++i) progress.message(std::string(1023, 'x'));
  const std::string read = reader.read([&] { progress.finish(); });
  const std::string all = std::string(1023, 'x') + "\n";
  const std::size_t lines = read.rfind(all) / all.size() + 1;
  EXPECT_GE(lines, 1020u);
  EXPECT_EQ(read.substr(lines * all.size()),
            fmt::format("{} lines are left out here: nobody read them in time\n", 1100 - lines));
}

}  // namespace
}  // namespace sherd::engine
