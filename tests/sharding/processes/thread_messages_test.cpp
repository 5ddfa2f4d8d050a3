#include "sharding/processes/thread_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace sherd::sharding {
namespace {

using Numbers = std::vector<int>;

std::int64_t bytes_of(const Numbers& numbers) {
  return static_cast<std::int64_t>(numbers.size() * sizeof(int));
}

TEST(ThreadMessages, AReceiveTakesWhatHasBeenSentAndTheSenderLearnsOfIt) {
  ThreadMessages messages;
  const Numbers sent = {1, 2, 3};
  Numbers received(3);
  const auto message = messages.send(7, sent.data(), bytes_of(sent));
  EXPECT_FALSE(message->copied());
  EXPECT_TRUE(messages.take(messages.expect(7, received.data(), bytes_of(received))));
  EXPECT_TRUE(message->copied());
  EXPECT_EQ(received, sent);
}

TEST(ThreadMessages, WhoAsksBeforeTheMessageGetsItLater) {
  ThreadMessages messages;
  const Numbers sent = {4};
  Numbers received(1);
  const auto receive = messages.expect(7, received.data(), bytes_of(received));
  EXPECT_FALSE(messages.take(receive));
  messages.send(7, sent.data(), bytes_of(sent));
  EXPECT_TRUE(messages.take(receive));
  EXPECT_EQ(received, sent);
}

TEST(ThreadMessages, MessagesOfATagMeetItsReceivesInOrderWhicheverIsAskedAboutFirst) {
  ThreadMessages messages;
  const Numbers first = {1}, second = {2};
  Numbers to_first(1), to_second(1);
  const auto a = messages.expect(7, to_first.data(), 4);
  const auto b = messages.expect(7, to_second.data(), 4);
  messages.send(7, first.data(), 4);
  EXPECT_FALSE(messages.take(b));
  messages.send(7, second.data(), 4);
  EXPECT_TRUE(messages.take(b));
  EXPECT_TRUE(messages.take(a));
  EXPECT_EQ(to_first, first);
  EXPECT_EQ(to_second, second);
}

TEST(ThreadMessages, AReceiveOfAnotherTagTakesNothing) {
  ThreadMessages messages;
  const Numbers sent = {5};
  Numbers received = {0};
  const auto message = messages.send(7, sent.data(), 4);
  EXPECT_FALSE(messages.take(messages.expect(8, received.data(), 4)));
  EXPECT_FALSE(message->copied());
  EXPECT_EQ(received, Numbers{0});
}

TEST(ThreadMessages, AMessageThatIsGivenUpIsNotCopied) {
  ThreadMessages messages;
  const Numbers sent = {5};
  Numbers received = {0};
  const auto message = messages.send(7, sent.data(), 4);
  ThreadMessages::give_up(*message);
  EXPECT_FALSE(messages.take(messages.expect(7, received.data(), 4)));
  EXPECT_FALSE(message->copied());
  EXPECT_EQ(received, Numbers{0});
}

// The thread sanitizer watches: a buffer is written again only when no thread reads it.
TEST(ThreadMessages, ABufferIsItsSendersAgainOnceItIsCopiedOrGivenUp) {
  ThreadMessages messages;
  constexpr int kRounds = 300;
  std::atomic<int> received = 0, given_up = 0;
  std::thread receiver([&] {
    Numbers into(1000);
    for (int round = 0; round < kRounds; ++round) {
      const auto receive = messages.expect(7, into.data(), bytes_of(into));
      while (!messages.take(receive)) {
        if (round < given_up) break;
        std::this_thread::yield();
      }
      if (into == Numbers(1000, round)) ++received;
    }
  });
  Numbers buffer(1000);
  int copied = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::fill(buffer.begin(), buffer.end(), round);
    const auto message = messages.send(7, buffer.data(), bytes_of(buffer));
    if (round % 2 == 1) {
      ThreadMessages::give_up(*message);
    } else {
      while (!message->copied()) std::this_thread::yield();
    }
    if (message->copied()) ++copied;
    given_up = round + 1;
  }
  receiver.join();
  EXPECT_GE(copied, kRounds / 2);
  EXPECT_EQ(received, copied);
}

}  // namespace
}  // namespace sherd::sharding
