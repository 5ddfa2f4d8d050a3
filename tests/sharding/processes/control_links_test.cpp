#include "sharding/processes/control_links.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <latch>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "sharding/processes/control_socket.h"
#include "tests/support/values/error_text.h"

namespace sherd::sharding {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPatience{10'000};

// A connection to whom the address names, on which `bytes` have been sent.
int stranger(const std::string& address, const std::string& bytes) {
  std::istringstream words(address);
  std::string secret, host;
  std::uint16_t port = 0;
  words >> secret >> port >> host;
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  EXPECT_EQ(::connect(file, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(::send(file, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return file;
}

// Threads that are processes to one another.
void run(int count, const std::function<void(ControlLinks&)>& body,
         const std::function<void(const std::string& address)>& before = {}) {
  std::promise<std::string> promise;
  const std::shared_future<std::string> address = promise.get_future().share();
  std::vector<std::thread> threads;
  for (int process = 0; process < count; ++process) {
    threads.emplace_back([&, process] {
      const ControlLinks::Options options{process, count, kPatience};
      const auto links = process > 0 ? ControlLinks::connect(options, address.get())
                                     : ControlLinks::listen(options, true, [&](const auto& text) {
                                         if (before) before(text);
                                         promise.set_value(text);
                                       });
      body(*links);
      links->say("leaving", "");
      links->heard("leaving", kPatience);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ControlLinks, EveryProcessHearsWhatEachHasSaid) {
  for (const int count : {1, 2, 3, 5}) {
    run(count, [&](ControlLinks& links) {
      for (int round = 0; round < 20; ++round) {
        const auto word = [&](int process) {
          return std::string(static_cast<std::size_t>(process * 10'000), 'x') + char(round);
        };
        const auto words = links.all_gather("round", word(links.process()));
        ASSERT_EQ(static_cast<int>(words.size()), count);
        for (int process = 0; process < count; ++process) EXPECT_EQ(words[process], word(process));
      }
    });
  }
}

// Process 0 sees that all have come, fails at once and says so: the others still hear that all had come.
TEST(ControlLinks, WordsThatAreCompleteAreHeardBeforeAnAbortThatFollowsThem) {
  for (int round = 0; round < 300; ++round) {
    run(3, [&](ControlLinks& links) {
      EXPECT_NO_THROW(links.all_gather("all are here", ""));
      if (links.process() == 0) links.abort("disk full");
    });
  }
}

TEST(ControlLinks, AnAbortReachesEveryProcessWithItsReasonAndTheFirstReasonStays) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    run(3, [&](ControlLinks& links) {
      links.all_gather("all are here", "");
      if (links.process() == culprit) links.abort("disk full");
      EXPECT_EQ(test::error_text<PeerError>([&] {
                  for (int round = 0;; ++round) links.all_gather(std::to_string(round), "");
                }),
                "disk full");
      links.abort("something later");
      EXPECT_EQ(links.reason(), "disk full");
      EXPECT_FALSE(links.by_death());
    });
  }
}

// A process that dies closes its connections without farewell; here, one that never was one.
TEST(ControlLinks, AProcessThatEndsWithoutFarewellIsNamedToAllOthers) {
  std::promise<std::string> promise;
  const std::shared_future<std::string> address = promise.get_future().share();
  const auto survive = [](ControlLinks& links) {
    links.set_names({"rank 0 on a", "rank 1 on b", "rank 2 on c"});
    EXPECT_EQ(test::error_text<PeerError>([&] { links.all_gather("never", ""); }),
              "rank 2 on c ended without a word: it was killed, or crashed.");
    EXPECT_TRUE(links.by_death());
    links.say("leaving", "");
    const auto words = links.heard("leaving", kPatience);  // the dead one isn't waited for
    ASSERT_TRUE(words);
    EXPECT_TRUE((*words)[0] && (*words)[1] && !(*words)[2]);
  };
  std::latch named(2);
  std::vector<std::string> told;  // by the first process that lives alone
  std::thread first([&] {
    const auto links = ControlLinks::listen({0, 3, kPatience}, true,
                                            [&](const auto& text) { promise.set_value(text); });
    links->set_names({"rank 0 on a", "rank 1 on b", "rank 2 on c"});
    links->on_death([&](const std::string& reason) { told.push_back("0: " + reason); });
    named.count_down();
    survive(*links);
  });
  std::thread second([&] {
    const auto links = ControlLinks::connect({1, 3, kPatience}, address.get());
    links->on_death([&](const std::string& reason) { told.push_back("1: " + reason); });
    named.count_down();
    survive(*links);
  });
  std::string greeting = address.get().substr(0, 32);
  greeting.append({2, 0, 0, 0});
  const int dying = stranger(address.get(), greeting);
  named.wait();
  ::close(dying);
  first.join();
  second.join();
  EXPECT_EQ(told, std::vector<std::string>{
                      "0: rank 2 on c ended without a word: it was killed, or crashed."});
}

// A stopped process keeps its connections and says nothing: the kernel answers for it.
TEST(ControlLinks, ASilentProcessIsNamedAlsoToThoseWhoWaitForItsLastWord) {
  std::promise<std::string> promise;
  std::promise<int> connected;
  std::thread silent([&] {
    const std::string address = promise.get_future().get();
    connected.set_value(stranger(address, address.substr(0, 32) + std::string("\x01\0\0\0", 4)));
  });
  auto links = ControlLinks::listen({0, 2, kPatience}, true,
                                    [&](const auto& text) { promise.set_value(text); });
  silent.join();
  links->set_timeout(milliseconds(100));
  links->say("leaving", "");
  const auto words = links->heard("leaving", kPatience);
  ASSERT_TRUE(words);
  EXPECT_TRUE((*words)[0] && !(*words)[1]);
  EXPECT_TRUE(links->by_death());
  EXPECT_TRUE(links->reason().starts_with("process 1 was silent for ")) << links->reason();
  // It receives the reason, too, before the connection ends: it may continue later.
  const std::string reason = links->reason();
  links.reset();
  const int file = connected.get_future().get();
  std::string heard;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::recv(file, bytes, sizeof bytes, 0)) > 0;) {
    heard.append(bytes, static_cast<std::size_t>(got));
  }
  EXPECT_NE(heard.find(reason), std::string::npos);
  ::close(file);
}

// A process that is stopped, and continues after the others have given it up, doesn't blame process 0 for their
// end.
TEST(ControlLinks, AProcessThatGoesOnAfterTheOthersHaveGivenItUpBlamesNobody) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a child with threads, which the thread sanitizer doesn't allow";
#endif
  int to_child[2];
  ASSERT_EQ(::pipe(to_child), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char address[4096] = {};
    [[maybe_unused]] const auto got = ::read(to_child[0], address, sizeof address);
    const auto links = ControlLinks::connect({1, 2, kPatience}, address);
    while (!links->aborted()) std::this_thread::yield();
    ::_exit(links->given_up() && links->reason().starts_with("process 1 was silent for ") ? 0 : 1);
  }
  auto links = ControlLinks::listen({0, 2, kPatience}, true, [&](const std::string& text) {
    ASSERT_EQ(::write(to_child[1], text.data(), text.size() + 1),
              static_cast<ssize_t>(text.size() + 1));
  });
  links->set_timeout(milliseconds(1));
  ::kill(child, SIGSTOP);
  while (!links->aborted()) std::this_thread::yield();
  EXPECT_FALSE(links->given_up());
  links.reset();
  ::kill(child, SIGCONT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::close(to_child[0]);
  ::close(to_child[1]);
}

// Each would have a whole hour for its greeting.
TEST(ControlLinks, SilentGuestsAtTheDoorKeepNobodyOut) {
  const Door door({.loopback = true, .for_a_greeting = std::chrono::hours(1)});
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger(door.address(), i % 2 == 0 ? "" : "x"));
  std::thread process([&] { connect_to(door.address(), 1, kPatience); });
  EXPECT_TRUE(door.let_in(2, std::chrono::hours(1))[1]);
  process.join();
  for (const int file : silent) ::close(file);
}

// A server that accepts connections, and answers with `answer` or not at all.
std::string problem_of_connecting(const std::string& answer, bool closes, milliseconds timeout) {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listening, 1), 0);
  EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::promise<void> over;
  std::thread other([&] {
    const int file = ::accept(listening, nullptr, nullptr);
    char greeting[36];
    EXPECT_EQ(::recv(file, greeting, sizeof greeting, MSG_WAITALL), 36);
    ::send(file, answer.data(), answer.size(), MSG_NOSIGNAL);
    if (!closes) over.get_future().wait();
    ::close(file);
  });
  const std::string text = test::error_text<PeerError>([&] {
    connect_to(door_address(std::string(32, '0'), ntohs(address.sin_port), {"127.0.0.1"}), 1,
               timeout);
  });
  over.set_value();
  other.join();
  ::close(listening);
  return std::regex_replace(text, std::regex(":[0-9]+:"), ":PORT:");
}

TEST(ControlLinks, WhoConnectsTellsASlowProcess0FromOneThatEndsAndOneThatRefuses) {
  EXPECT_EQ(problem_of_connecting("", false, milliseconds(50)),
            "process 1 waited 0.05 s for an answer from 127.0.0.1:PORT: process 0 is slow, or was "
            "stopped.");
  EXPECT_EQ(problem_of_connecting("", true, kPatience),
            "process 1 had no answer from the program that listens at 127.0.0.1:PORT: process 0 "
            "has ended, or it isn't process 0.");
  EXPECT_EQ(
      problem_of_connecting("-", true, kPatience),
      "process 1 was refused by the program that listens at 127.0.0.1:PORT: the secrets differ, "
      "another process has the same number, or it isn't process 0 of this run.");
}

TEST(ControlLinks, StrangersAreTurnedAway) {
  std::vector<int> strangers;
  run(
      2, [](ControlLinks& links) { links.all_gather("all are here", ""); },
      [&](const std::string& address) {
        std::string wrong(32, '0'), number_of_nobody = address.substr(0, 32) + "\x07";
        number_of_nobody.append(3, '\0');
        wrong.append({1, 0, 0, 0});  // the number of one that is still to come
        strangers = {stranger(address, wrong), stranger(address, "GET / HTTP/1.1\r\n\r\n"),
                     stranger(address, ""), stranger(address, number_of_nobody)};
      });
  for (const int file : strangers) {
    char byte = '-';
    while (::recv(file, &byte, 1, 0) > 0) EXPECT_EQ(byte, '-');  // "no" at most, then closed
    ::close(file);
  }
}

TEST(ControlLinks, AProcessThatDoesntConnectIsNamedAfterTheTimeout) {
  EXPECT_EQ(test::error_text<PeerError>([] {
              ControlLinks::listen({0, 2, milliseconds(50)}, true, [](const auto&) {});
            }),
            "process 0 waited 0.05 s for process 1 to connect to it.");
}

TEST(ControlLinks, AnAddressWhereNobodyListensIsAnError) {
  const std::string text = test::error_text<PeerError>([] {
    ControlLinks::connect({1, 2, milliseconds(1000)}, std::string(32, '0') + " 1 127.0.0.1");
  });
  EXPECT_EQ(text, "process 1 can't connect to process 0: 127.0.0.1: Connection refused.");
}

TEST(ControlLinks, ANoticeReachesThoseItIsForAndTheLastOneStays) {
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      run(4, [&](ControlLinks& links) {
        if (links.process() == from) {
          links.tell({to, 3}, "id", "one");
          links.tell({to}, "other", std::string("\0\1", 2));
        }
        const bool is_told = links.process() == to || links.process() == 3;
        if (is_told) {
          EXPECT_EQ(links.told("id", kPatience), "one");
        }
        if (links.process() == to) {
          EXPECT_EQ(links.told("other", kPatience), std::string("\0\1", 2));
        }
        links.all_gather("those have read", "");
        if (!is_told) {
          EXPECT_EQ(links.told("id", milliseconds(0)), std::nullopt);
        }
        if (links.process() == from) links.tell({to}, "id", "two");
        while (links.process() == to && links.told("id", kPatience) != "two") {
          std::this_thread::yield();
        }
      });
    }
  }
}

TEST(ControlLinks, AnAbortEndsTheWaitForANotice) {
  run(2, [&](ControlLinks& links) {
    if (links.process() == 1) return links.abort("disk full");
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(links.told("never", kPatience), std::nullopt);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kPatience);
    EXPECT_EQ(links.reason(), "disk full");
  });
}

}  // namespace
}  // namespace sherd::sharding
