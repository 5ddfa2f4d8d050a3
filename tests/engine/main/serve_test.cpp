// `sherd serve`: a small model, and clients that speak HTTP over sockets of their own.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "tests/engine/main/http_client.h"
#include "tests/engine/main/train_cli_support.h"
#include "tests/support/models/small_tokenizer.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::json;
using test::HttpClient;
using test::HttpResponse;

class ServeTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    folder_->write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_->write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    folder_->write("tokenizer/chat_template.jinja",
                   "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}<|end|>\n{% endfor %}"
                   "{% if add_generation_prompt %}[assistant]\n{% endif %}");
    std::string text;
    for (int i = 0; text.size() < 4000; ++i) text += i * i % 3 == 0 ? "the fox. " : "over the dog ";
    folder_->write("text.txt", text);
    folder_->write(
        "tiny.yaml",
        R"(model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 259}
training: {seq_length: 64, global_batch_size: 4, max_steps: 6, sample_tokens: 0}
optimizer: {lr: 1e-2}
)");
    const test::ProgramOutcome outcome = test::run_program(
        SHERD_PROGRAM,
        {"train", folder_->file("tiny.yaml"), "--set", "data.path=" + folder_->file("text.txt"),
         "--set", "data.tokenizer=" + folder_->file("tokenizer"), "--set", "data.format=text",
         "--set", "run.output_dir=" + folder_->file("run")});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  // Serves the model while `use` has a client for it; then Ctrl-C.
  static test::ProgramOutcome serve(const std::vector<std::string>& extra,
                                    const std::function<void(const HttpClient&)>& use) {
    std::vector<std::string> arguments = {"serve", folder_->file("run"), "--port", "0"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    bool served = false;
    const test::ProgramOutcome outcome =
        test::run_program(SHERD_PROGRAM, arguments, [&](pid_t program, const std::string& line) {
          const std::size_t port = line.find("127.0.0.1:");
          if (port != line.npos) {
            served = true;
            use(HttpClient(std::stoi(line.substr(port + 10))));
          }
          ::kill(program, SIGINT);
        });
    if (outcome.err.find("built without cpp-httplib") == std::string::npos) {
      EXPECT_TRUE(served) << outcome.err;
      EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    }
    return outcome;
  }

  static std::string sampled(const std::string& prompt, int tokens) {
    folder_->write("prompts.jsonl", Json{{"prompt", prompt}}.dump() + "\n");
    const test::ProgramOutcome outcome = test::run_program(
        SHERD_PROGRAM, {"sample", folder_->file("run"), "--prompts", folder_->file("prompts.jsonl"),
                        "--temperature", "0", "--tokens", std::to_string(tokens)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out).at("text");
  }

  static void expect_refused(const HttpResponse& response, int status, const std::string& param,
                             const std::string& message) {
    EXPECT_EQ(response.status, status) << response.body;
    const Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("message"), message);
    EXPECT_EQ(error.at("param"), param.empty() ? Json() : Json(param));
    EXPECT_EQ(error.at("type"), status == 429   ? "rate_limit_error"
                                : status >= 500 ? "server_error"
                                                : "invalid_request_error");
    EXPECT_TRUE(error.contains("code"));
  }

  static std::unique_ptr<test::TempFolder> folder_;
};
std::unique_ptr<test::TempFolder> ServeTest::folder_;

// The JSON objects of a stream, without its end.
std::vector<Json> events_of(const HttpResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n")) << response.body;
  std::vector<Json> events;
  std::istringstream lines(response.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line == "data: [DONE]") continue;
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    events.push_back(Json::parse(line.substr(6)));
  }
  return events;
}

TEST_F(ServeTest, CompletesGreedilyAsSampleDoes) {
  const std::string expected = sampled("over the ", 20);
  serve({}, [&](const HttpClient& client) {
    const Json query = {
        {"model", "run"}, {"prompt", "over the "}, {"max_tokens", 20}, {"temperature", 0}};
    const HttpResponse response = client.post("/v1/completions", query.dump());
    ASSERT_EQ(response.status, 200) << response.body;
    const Json reply = Json::parse(response.body);
    EXPECT_EQ(reply.at("object"), "text_completion");
    EXPECT_EQ(reply.at("model"), "run");
    EXPECT_EQ(reply.at("choices").at(0).at("text"), expected);
    EXPECT_EQ(reply.at("usage").at("completion_tokens"), 20);
    EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "length");
  });
}

TEST_F(ServeTest, StreamsTheSameText) {
  const std::string expected = sampled("over the ", 20);
  serve({}, [&](const HttpClient& client) {
    const Json query = {{"prompt", "over the "},
                        {"max_tokens", 20},
                        {"temperature", 0},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}}};
    const HttpResponse response = client.post("/v1/completions", query.dump());
    EXPECT_NE(response.head.find("text/event-stream"), std::string::npos) << response.head;
    std::vector<Json> events = events_of(response);
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(events.back().at("usage").at("completion_tokens"), 20);
    EXPECT_EQ(events.back().at("choices"), Json::array());
    events.pop_back();
    EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason"), "length");
    std::string text;
    for (const Json& event : events) text += event.at("choices").at(0).at("text");
    EXPECT_EQ(text, expected);
  });
}

TEST_F(ServeTest, ChatsByTheModelsTemplate) {
  const std::string expected = sampled("[user]\nthe fox<|end|>\n[assistant]\n", 20);
  serve({}, [&](const HttpClient& client) {
    Json query = {{"messages", {{{"role", "user"}, {"content", "the fox"}}}},
                  {"max_tokens", 20},
                  {"temperature", 0}};
    const Json reply = Json::parse(client.post("/v1/chat/completions", query.dump()).body);
    EXPECT_EQ(reply.at("object"), "chat.completion") << reply;
    EXPECT_EQ(reply.at("choices").at(0).at("message").at("role"), "assistant");
    EXPECT_EQ(reply.at("choices").at(0).at("message").at("content"), expected);
    query["stream"] = true;
    std::string text;
    const std::vector<Json> events = events_of(client.post("/v1/chat/completions", query.dump()));
    EXPECT_EQ(events.at(0).at("choices").at(0).at("delta").at("role"), "assistant");
    for (const Json& event : events) {
      EXPECT_EQ(event.at("object"), "chat.completion.chunk");
      text += event.at("choices").at(0).at("delta").value("content", "");
    }
    EXPECT_EQ(text, expected);
  });
}

TEST_F(ServeTest, NamesItsModel) {
  serve({"--name", "mine"}, [&](const HttpClient& client) {
    const Json models = Json::parse(client.get("/v1/models").body);
    EXPECT_EQ(models.at("object"), "list");
    EXPECT_EQ(models.at("data").at(0).at("id"), "mine");
    EXPECT_EQ(Json::parse(client.get("/v1/models/mine").body).at("object"), "model");
    EXPECT_EQ(client.get("/health").status, 200);
    expect_refused(client.post("/v1/completions", R"({"model": "gpt", "prompt": "a"})"), 404,
                   "model", "there is no model \"gpt\"; this is mine.");
  });
}

TEST_F(ServeTest, RefusesWhatItCantDoInOneSentence) {
  serve({"--tokens", "30"}, [&](const HttpClient& client) {
    const auto refused = [&](const std::string& body, const std::string& param,
                             const std::string& message) {
      expect_refused(client.post("/v1/completions", body), 400, param, message);
    };
    refused("{", "", "expected a JSON object as the request's body.");
    refused("{}", "prompt", "prompt: is missing.");
    refused(R"({"prompt": "a", "n": 2})", "n", "n: this server supports only 1.");
    refused(R"({"prompt": "a", "fly": 2})", "fly", "fly: this server doesn't know this parameter.");
    refused(R"({"prompt": "a", "temperature": 3})", "temperature",
            "temperature: expected a number from 0 to 2.");
    refused(R"({"prompt": ["a", "b"]})", "prompt",
            "prompt: expected one text; send one request for each.");
    refused(R"({"prompt": [259]})", "prompt", "prompt: token 259; the model has 259.");
    refused(R"({"prompt": "a", "max_tokens": 31})", "max_tokens",
            "max_tokens is 31; this server makes at most 30.");
    expect_refused(client.post("/v1/chat/completions",
                               R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3,
                        "max_completion_tokens": 4})"),
                   400, "max_completion_tokens",
                   "max_completion_tokens: max_tokens is given, too, and is another number.");
    EXPECT_EQ(client
                  .post("/v1/chat/completions",
                        R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": null,
                            "max_completion_tokens": 4})")
                  .status,
              200);
    const std::string full(60, '.');
    refused(Json{{"prompt", full}, {"max_tokens", 5}}.dump(), "prompt",
            "the prompt has 60 tokens, and the text may have 5: together more than the context, "
            "64.");
    refused(std::string(300, '['), "", "the request: JSON nested deeper than 100 levels");
    expect_refused(client.get("/v1/fly"), 404, "", "GET /v1/fly: there is nothing.");
    expect_refused(client.get("/v1/completions"), 405, "", "expected POST.");
    expect_refused(client.send("POST", "/v1/completions", "Content-Type: text/plain\r\n", "{}"),
                   415, "", "expected Content-Type: application/json.");
    expect_refused(client.send("GET", "/v1/models", "Host: evil.example\r\n", ""), 403, "",
                   "this server answers only to localhost; --host changes that.");
    expect_refused(client.post("/v1/completions", std::string((4 << 20) + 1, ' ')), 413, "",
                   "the request is larger than 4 MiB.");
  });
}

// A body whose size isn't known before it is read could fill the memory.
TEST_F(ServeTest, ReadsNoBodyOfUnknownSize) {
  serve({}, [&](const HttpClient& client) {
    const auto refused = [&](const std::string& headers, int status, const std::string& message) {
      expect_refused(client.send("POST", "/v1/completions",
                                 "Content-Type: application/json\r\n" + headers, ""),
                     status, "", message);
    };
    refused("Transfer-Encoding: chunked\r\n", 411,
            "the request needs a Content-Length; chunked bodies aren't read.");
    refused("Content-Encoding: gzip\r\n", 415, "compressed bodies aren't read.");
    refused("Content-Length: 99999999999\r\n", 413, "the request is larger than 4 MiB.");
  });
}

// The first text is long enough to be in work when the second request comes.
TEST_F(ServeTest, RefusesMoreWaitingRequestsThanAllowedAndForgetsClientsThatLeave) {
  serve({"--waiting", "0", "--set", "model.max_seq_length=100000", "--context", "100000"},
        [&](const HttpClient& client) {
          const Json query = {
              {"prompt", "the "}, {"max_tokens", 90000}, {"temperature", 0}, {"stream", true}};
          {
            const test::Connection first = client.open("/v1/completions", query.dump());
            EXPECT_NE(first.read_until("data: "), "") << "the text has begun";
            expect_refused(client.post("/v1/completions", R"({"prompt": "a"})"), 429, "",
                           "0 requests wait already; try again later.");
          }
          // Its connection is closed: sooner or later the model is free again.
          HttpResponse response;
          do {
            response = client.post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})");
          } while (response.status == 429);
          EXPECT_EQ(response.status, 200) << response.body;
        });
}

TEST_F(ServeTest, EndsATextAtTheTimeLimitAndAtCtrlC) {
  const std::vector<std::string> long_context = {
      "--seconds", "1", "--context", "100000", "--set", "model.max_seq_length=100000"};
  serve(long_context, [&](const HttpClient& client) {
    const Json query = {{"prompt", "the "}, {"max_tokens", 90000}, {"temperature", 0}};
    const Json reply = Json::parse(client.post("/v1/completions", query.dump()).body);
    EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "length");
    EXPECT_LT(reply.at("usage").at("completion_tokens"), 90000);
  });
}

using ServeSlow = ServeTest;

TEST_F(ServeSlow, IsUnderstoodByOpenAisClient) {
  const std::string python = SHERD_SOURCE_DIR "/build/openai-venv/bin/python";
  if (::access(python.c_str(), X_OK) != 0) GTEST_SKIP() << "build/openai-venv isn't there";
  const std::string expected = sampled("over the ", 20);
  serve({}, [&](const HttpClient& client) {
    const test::ProgramOutcome outcome = test::run_program(
        python, {SHERD_SOURCE_DIR "/tests/packages/openai_client.py",
                 "http://127.0.0.1:" + std::to_string(client.port()) + "/v1", expected});
    EXPECT_EQ(outcome.out, "passed\n") << outcome.err;
  });
}

TEST_F(ServeTest, RefusesAnAddressThatIsTaken) {
  serve({}, [&](const HttpClient& client) {
    const test::ProgramOutcome second = test::run_program(
        SHERD_PROGRAM, {"serve", folder_->file("run"), "--port", std::to_string(client.port())});
    EXPECT_EQ(second.exit_code, 2);
    EXPECT_EQ(second.err, "sherd: 127.0.0.1:" + std::to_string(client.port()) +
                              ": can't be bound; is another program there? Try --port.\n");
  });
}

}  // namespace
}  // namespace sherd::engine
