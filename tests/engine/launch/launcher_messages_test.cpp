// Standard error of mpirun and its processes: what `sherd launch` passes on. The texts are those of
// Open MPI 4.1.4 and 5.0.7.
#include "engine/launch/launcher_messages.h"

#include <gtest/gtest.h>

namespace sherd::engine {
namespace {

const std::string kBar = std::string(74, '-') + "\n";
const std::string kAborted =
    kBar + "Primary job  terminated normally, but 1 process returned\n" +
    "a non-zero exit code. Per user-direction, the job has been aborted.\n" + kBar;
const std::string kNoticed =
    kBar +
    "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n" +
    kBar;

// What is passed on of `text`, in pieces of any size.
void expect_of_pieces(const std::string& text, const std::string& passed,
                      const std::string& ended) {
  for (std::size_t size = 1; size < text.size(); ++size) {
    MpirunMessages messages;
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += size) {
      out += messages.pass(text.substr(at, size));
    }
    EXPECT_EQ(out + messages.rest(), passed) << size;
    EXPECT_EQ(messages.ended(), ended) << size;
  }
}

TEST(MpirunMessages, AboutAProcessThatEndedAreLeftOutAndItIsNamed) {
  MpirunMessages messages;
  EXPECT_EQ(messages.pass("sherd: a\n" + kAborted + kNoticed + "sherd: b\n"),
            "sherd: a\nsherd: b\n");
  EXPECT_EQ(messages.ended(), "process 1 on vm");
  EXPECT_EQ(messages.rest(), "");
}

TEST(MpirunMessages, ThatComeInPiecesAreReadAsWhole) {
  const std::string text = "sherd: a\n" + kAborted + "half" + "\n" + kNoticed + "end";
  expect_of_pieces(text, "sherd: a\nhalf\nend", "process 1 on vm");
}

TEST(MpirunMessages, AboutSignalsThatItPassesOnAreLeftOut) {
  const std::string text =
      "mpirun: Forwarding signal 10 to job\nsherd: a\nmpirun: Forwarding signal 12 to job\nmpirun: "
      "b\n";
  expect_of_pieces(text, "sherd: a\nmpirun: b\n", "");
}

// Two processes print at once.
TEST(MpirunMessages, OfOpenMpi5AreLeftOutToo) {
  const std::string place =
      "[vm][[41460,1],2][../../../opal/mca/btl/tcp/btl_tcp_proc.c:266:mca_btl_tcp_proc] ";
  const std::string unable =
      "Unable to find reachable pairing between local and remote interfaces\n";
  const std::string detected =
      kBar +
      "prterun detected that one or more processes exited with non-zero status,\nthus causing the "
      "job to be terminated. The first process to do so was:\n\n   Process name: "
      "[prterun-vm-6602@1,0]\n   Exit code:    3\n" +
      kBar;
  const std::string noticed =
      kBar +
      "prterun noticed that process rank 1 with PID 0 on node vm exited on\nsignal 9 (Killed).\n" +
      kBar;
  const std::string text = place + unable + "sherd: a\n" + place + place + unable + unable +
                           detected + noticed +
                           "prterun: Forwarding signal 10 to job\n[vm] b\n[1/3] c\n";
  expect_of_pieces(text, "sherd: a\n[vm] b\n[1/3] c\n", "process 1 on vm");
}

TEST(MpirunMessages, OfOthersPassAtOnce) {
  MpirunMessages messages;
  EXPECT_EQ(messages.pass("no end of line"), "no end of line");
  EXPECT_EQ(messages.pass(", yet\n---- 50 %"), ", yet\n---- 50 %");
  EXPECT_EQ(messages.pass("\n"), "\n");
  EXPECT_EQ(messages.pass("[1/3] read"), "[1/3] read");
}

// A hook may print tables.
TEST(MpirunMessages, OfOthersBetweenBarsAreKept) {
  MpirunMessages messages;
  const std::string table = kBar + "loss 3.1\n" + kBar;
  EXPECT_EQ(messages.pass(table), table);
  std::string open = kBar;
  for (int i = 0; i < 30; ++i) open += "a row\n";
  EXPECT_EQ(messages.pass(open), open);
  EXPECT_EQ(messages.pass(kBar + "the last\n"), "");
  EXPECT_EQ(messages.rest(), kBar + "the last\n");
  EXPECT_EQ(messages.ended(), "");
}

}  // namespace
}  // namespace sherd::engine
