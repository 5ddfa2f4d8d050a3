// Event files as TensorBoard's own writer makes them (tests/reference/tensorboard/events.py prints the
// expected events), and what becomes of a run that can't write one.
#include "engine/report/event_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using checkpoint::posix_disk;
using Strings = std::vector<std::string>;

// After the wall time, which comes first: 09 and eight bytes.
const Strings kExpected = {
    "1a0d627261696e2e4576656e743a32", "10ad023a020801",
    "10ad022abc010a110a0a747261696e2f6c6f737315000020400a160a0f747261696e2f677261645f6e6f72"
    "6d150000003e0a0f0a08747261696e2f6c72156f12833a0a130a0c747261696e2f746f6b656e731500001c"
    "460a190a1273706565642f746f6b656e735f7065725f731540a99e470a1b0a1474696d652f6578706f7365"
    "645f636f6d6d5f6d73150000803e0a180a116d656d6f72792f7065616b5f627974657315a379eb4c0a170a"
    "10747261696e2f6c6f73735f7363616c651500008047",
    "10ad022a110a0f0a0876616c2f6c6f73731500008440",
    "1090032a290a270a0673616d706c654213080712041202080142096f6e63652075706f6e4a080a060a0474"
    "657874"};

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// The events of a file, whose lengths and sums must be right; what is torn at its end is left out.
Strings events_in(const std::string& bytes) {
  Strings events;
  for (std::size_t at = 0; at + 12 <= bytes.size();) {
    const auto length = number_at<std::uint64_t>(bytes, at);
    if (at + 16 + length > bytes.size()) break;
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at + 8), masked_crc({bytes.data() + at, 8}));
    events.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at + 12 + length), masked_crc(events.back()));
    at += 16 + length;
  }
  return events;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

class EventFileTest : public ::testing::Test {
 protected:
  EventFile begin(std::int64_t steps_done, checkpoint::Disk& disk = posix_disk()) {
    return {disk, folder_.file("tensorboard"), lock_, steps_done,
            [this](const std::string& text) { notices_.push_back(text); }};
  }
  Strings files() const {
    Strings names;
    for (const auto& entry : fs::directory_iterator(folder_.file("tensorboard"))) {
      names.push_back("tensorboard/" + entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  test::TempFolder folder_;
  checkpoint::OutputLock lock_{posix_disk(), folder_.path()};
  Strings notices_;
};

StepMetrics step() {
  StepMetrics metrics;
  metrics.step = 301;
  metrics.loss = 2.5, metrics.grad_norm = 0.125, metrics.lr = 0.001;
  metrics.tokens = 9984, metrics.tokens_per_s = 81234.5, metrics.exposed_comm_ms = 0.25;
  metrics.total_peak_bytes = 123456789, metrics.loss_scale = 65536.0;
  return metrics;
}

// RFC 3720, B.4.
TEST(Crc32c, IsThatOfTheStandard) {
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  descending.assign(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(crc32c(descending), 0x113fdb5cu);
}

TEST_F(EventFileTest, HasTheEventsOfTensorBoardsOwnWriter) {
  EventFile file = begin(300);
  file.write(step());
  file.write(EvaluationMetrics{.step = 301, .val_loss = 4.125, .num_tokens = 9});
  file.write_text(400, "sample", "once upon");
  ASSERT_EQ(files().size(), 1u);
  const Strings events = events_in(folder_.read(files()[0]));
  ASSERT_EQ(events.size(), kExpected.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i][0], '\x09');
    EXPECT_EQ(hex(events[i].substr(9)), kExpected[i]) << "event " << i;
  }
  EXPECT_TRUE(notices_.empty());
}

TEST_F(EventFileTest, EachStartHasAFileOfItsOwn) {
  for (const std::int64_t steps_done : {0, 0, 300}) begin(steps_done).write(step());
  EXPECT_EQ(files().size(), 3u);
}

TEST_F(EventFileTest, AStartThatHasNothingToTellAddsNoFile) {
  begin(0).write(step());
  begin(300);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(EventFileTest, AProblemIsToldOnceAndEndsNothing) {
  bool full = false;
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (full && call.name == "pwrite") return -ENOSPC;
    return {};
  });
  EventFile file = begin(0, disk);
  file.write(step());
  full = true;
  file.write(step());
  full = false;
  file.write(step());
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_NE(notices_[0].find("no more curves for TensorBoard"), std::string::npos) << notices_[0];
  EXPECT_NE(notices_[0].find("ENOSPC"), std::string::npos) << notices_[0];
  EXPECT_EQ(events_in(folder_.read(files()[0])).size(), 3u);
}

TEST_F(EventFileTest, WritesNothingThroughALink) {
  const test::TempFolder elsewhere;
  fs::create_directory_symlink(elsewhere.path(), folder_.file("tensorboard"));
  begin(0).write(step());
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_NE(notices_[0].find("is no folder"), std::string::npos) << notices_[0];
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

TEST_F(EventFileTest, WritesNothingIntoAFolderThatIsAnothersNow) {
  EventFile file = begin(0);
  fs::remove(folder_.file(".lock"));
  const checkpoint::OutputLock other(posix_disk(), folder_.path());
  EXPECT_THROW(file.write(step()), checkpoint::LockLost);
}

}  // namespace
}  // namespace sherd::engine
