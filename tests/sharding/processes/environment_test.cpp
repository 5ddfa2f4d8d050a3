#include "sharding/processes/environment.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "core/error.h"
#include "tests/support/runs/free_port.h"
#include "tests/support/values/error_text.h"

namespace sherd::sharding {
namespace {

using std::chrono::milliseconds;

/// The variables that say who the processes are, for as long as it lives.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const char* name : kNames) unsetenv(name);
  }

 private:
  static constexpr const char* kNames[] = {
      "RANK",        "WORLD_SIZE",   "LOCAL_RANK", "MASTER_ADDR",
      "MASTER_PORT", "SHERD_SECRET", "SHERD_PORT", "TORCHELASTIC_USE_AGENT_STORE"};
};

const std::map<std::string, std::string> kSecond = {{"RANK", "3"},
                                                    {"WORLD_SIZE", "4"},
                                                    {"LOCAL_RANK", "1"},
                                                    {"MASTER_ADDR", "node1"},
                                                    {"MASTER_PORT", "29500"},
                                                    {"SHERD_SECRET", "a1b2"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> values,
                                        const std::string& name, const std::string& value) {
  values[name] = value;
  return values;
}

TEST(Environment, IsReadAsTorchrunSetsIt) {
  const Variables set(kSecond);
  const auto world = environment_world();
  ASSERT_TRUE(world);
  EXPECT_EQ(world->process, 3);
  EXPECT_EQ(world->num_processes, 4);
  EXPECT_EQ(world->local_process, 1);
  EXPECT_EQ(world->host, "node1");
  EXPECT_EQ(world->port, 29500);
  EXPECT_EQ(world->secret, "a1b2");
  EXPECT_FALSE(world->loopback);
}

TEST(Environment, TheNextPortIsTakenWhereTorchrunListensItself) {
  const auto port_with = [](const std::map<std::string, std::string>& values) {
    const Variables set(values);
    return environment_world()->port;
  };
  EXPECT_EQ(port_with(with(kSecond, "TORCHELASTIC_USE_AGENT_STORE", "True")), 29501);
  EXPECT_EQ(port_with(with(kSecond, "TORCHELASTIC_USE_AGENT_STORE", "False")), 29500);
  EXPECT_EQ(
      port_with(with(with(kSecond, "SHERD_PORT", "400"), "TORCHELASTIC_USE_AGENT_STORE", "True")),
      400);
}

TEST(Environment, OnLocalhostTheSecretIsTheUsers) {
  for (const auto& [host, is_local] : {std::pair("localhost", true),
                                       {"127.0.0.1", true},
                                       {"127.0.1.1", true},
                                       {"127.example.com", false},
                                       {"node1", false}}) {
    auto values = with(kSecond, "MASTER_ADDR", host);
    values.erase("SHERD_SECRET");
    const Variables set(values);
    const std::string error = test::error_text<UsageError>([&] {
      const auto world = environment_world();
      EXPECT_TRUE(world->loopback);
      EXPECT_EQ(world->secret, "user-" + std::to_string(::getuid()));
    });
    EXPECT_EQ(error == "(no error)", is_local) << host << ": " << error;
  }
}

TEST(Environment, WithoutItOrOfOneProcessSaysNothing) {
  EXPECT_FALSE((Variables({}), environment_world()));
  const Variables one(with(with(kSecond, "WORLD_SIZE", "1"), "RANK", "0"));
  EXPECT_FALSE(environment_world());
}

TEST(Environment, WhatCannotBeIsNamedInOneLine) {
  const auto error = [](const std::string& name, const std::string& value) {
    const Variables set(with(kSecond, name, value));
    return test::error_text<UsageError>([] { environment_world(); });
  };
  const std::string whose =
      " is needed: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe the "
      "processes of a world.";
  EXPECT_EQ(error("RANK", "4"), "the environment has RANK=4, but a number from 0 to 3" + whose);
  EXPECT_EQ(error("RANK", "1x"), "the environment has RANK=1x, but a number from 0 to 3" + whose);
  EXPECT_EQ(error("MASTER_PORT", "0"),
            "the environment has MASTER_PORT=0, but a number from 1 to 65534" + whose);
  EXPECT_EQ(error("LOCAL_RANK", ""),
            "the environment has LOCAL_RANK=nothing, but a number from 0 to 3" + whose);
  EXPECT_EQ(error("MASTER_ADDR", ""),
            "the environment has RANK and WORLD_SIZE=4, but no MASTER_ADDR: the machine of process "
            "0.");
  const std::string word =
      ": processes on several machines need a common secret, one word of at most 256 characters, "
      "such as the output of `openssl rand -hex 16`.";
  EXPECT_EQ(error("SHERD_SECRET", ""), "SHERD_SECRET is not set" + word);
  EXPECT_EQ(error("SHERD_SECRET", "two words"), "SHERD_SECRET is not a single word" + word);
}

EnvironmentWorld world_of(int process, int port, const std::string& secret = "secret") {
  return {process, 3, process, "127.0.0.1", port, secret, true};
}

TEST(Environment, ProcessesFindOneAnotherWhoeverComesFirst) {
  const int port = test::free_port();
  std::vector<std::thread> threads;
  for (const int process : {2, 1, 0}) {
    threads.emplace_back([=] {
      if (process == 0) std::this_thread::sleep_for(milliseconds(300));
      const auto processes = join_environment(world_of(process, port), milliseconds(20'000));
      EXPECT_EQ(processes->index(), process);
      EXPECT_EQ(processes->count(), 3);
      EXPECT_EQ(processes->index_on_this_host(), process);
      EXPECT_EQ(processes->num_on_this_host(), 3);
      EXPECT_FALSE(processes->carries_tensors());
      const auto words = processes->links().all_gather("word", std::to_string(process));
      EXPECT_EQ(words, (std::vector<std::string>{"0", "1", "2"}));
      processes->end({}, milliseconds(20'000));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Environment, WhoeverSaysAnotherSecretIsntLetIn) {
  const int port = test::free_port();
  std::thread first([=] {
    EXPECT_EQ(test::error_text<PeerError>(
                  [=] { join_environment(world_of(0, port), milliseconds(1'500)); }),
              "process 0 waited 1.5 s for process 1 to connect to it.");
  });
  std::thread stranger([=] {
    EXPECT_EQ(
        test::error_text<PeerError>(
            [=] { join_environment(world_of(1, port, "secreT"), milliseconds(20'000)); }),
        "process 1 was refused by the program that listens at 127.0.0.1:" + std::to_string(port) +
            ": the secrets differ, another process has the same number, or it isn't process 0 "
            "of this run.");
  });
  first.join();
  stranger.join();
}

TEST(Environment, APortInUseIsNamed) {
  const int port = test::free_port();
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(file, 1), 0);
  const std::string text = test::error_text<PeerError>(
      [=] { join_environment(world_of(0, port), milliseconds(1'000)); });
  EXPECT_EQ(text, "process 0 can't listen for the others on port " + std::to_string(port) +
                      ": Address already in use");
  ::close(file);
}

TEST(Environment, AProcessThatFindsNobodySaysWhere) {
  const int port = test::free_port();
  EXPECT_EQ(
      test::error_text<PeerError>([=] { join_environment(world_of(1, port), milliseconds(500)); }),
      "process 1 can't connect to process 0: 127.0.0.1: Connection refused.");
}

}  // namespace
}  // namespace sherd::sharding
