#include "engine/data/tokenize/tokenize.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/data/files/token_layout.h"
#include "tests/support/models/packed_text.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/runs/few_threads.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

using test::gzip;
using test::zstd;

class TokenizeTest : public testing::Test {
 protected:
  TokenizeTest() {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  }
  TokenizeOptions options(std::vector<std::string> names, const std::string& to = "out.bin") const {
    TokenizeOptions options{.tokenizer = folder_.file("tokenizer"), .to = folder_.file(to)};
    for (const std::string& name : names) options.texts.push_back(folder_.file(name));
    return options;
  }
  static std::string error(const TokenizeOptions& options) {
    return test::error_text<Error>([&] { tokenize(options); });
  }
  /// Tokens of the documents of a file with 2-byte tokens.
  std::vector<Ids> documents(const std::string& name) const {
    const MappedFile file(folder_.file(name));
    const TokenLayout layout = read_token_layout(file, 0);
    std::vector<Ids> result;
    std::int64_t begin = 0;
    for (std::int64_t d = 0; d < layout.header->num_documents; ++d) {
      std::uint64_t end = 0;
      std::memcpy(&end, file.bytes().data() + layout.header->ends_offset() + 8 * d, 8);
      Ids ids;
      for (; begin < static_cast<std::int64_t>(end); ++begin) {
        std::uint16_t id = 0;
        std::memcpy(&id, file.bytes().data() + layout.offset + 2 * begin, 2);
        ids.push_back(id);
      }
      result.push_back(ids);
    }
    return result;
  }
  /// Lines of JSON whose texts are all different.
  static std::string lines(int count) {
    std::string all;
    for (int i = 0; i < count; ++i) {
      all += nlohmann::json{{"text", "the " + std::to_string(i) + std::string(i % 50, 't')}}.dump();
      all += '\n';
    }
    return all;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  test::TempFolder folder_;
};

TEST_F(TokenizeTest, AFileIsADocumentAndALineOfJsonlIsOne) {
  folder_.write("a.txt", "the");
  folder_.write("b.jsonl", "{\"text\": \"th\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"a\\u00e9\"}");
  TokenizeOptions request = options({"a.txt", "b.jsonl"});
  request.eos = true;
  const TokenizeResult result = tokenize(request);
  EXPECT_EQ(documents("out.bin"),
            (std::vector<Ids>{{257, 258}, {256, 258}, {'a', 0xc3, 0xa9, 258}}));
  EXPECT_EQ(result.documents, 3);
  EXPECT_EQ(result.empty_documents, 1);
  EXPECT_EQ(result.tokens, 8);
  EXPECT_EQ(files(), (std::vector<std::string>{"a.txt", "b.jsonl", "out.bin", "tokenizer"}));
}

TEST_F(TokenizeTest, PackedTextsAreTheSameTexts) {
  const std::string text = lines(2000);
  folder_.write("a.jsonl", text);
  folder_.write("b.jsonl.gz", gzip(text.substr(0, 30)) + gzip(text.substr(30)));  // two members
  folder_.write("c.jsonl.zst", zstd(text));
  for (const char* name : {"a.jsonl", "b.jsonl.gz", "c.jsonl.zst"}) {
    tokenize(options({name}, std::string(name) + ".bin"));
  }
  EXPECT_EQ(documents("a.jsonl.bin").size(), 2000u);
  EXPECT_EQ(folder_.read("a.jsonl.bin"), folder_.read("b.jsonl.gz.bin"));
  EXPECT_EQ(folder_.read("a.jsonl.bin"), folder_.read("c.jsonl.zst.bin"));
}

TEST_F(TokenizeTest, PackedTextsThatAreCutShortAreNamed) {
  const std::string text = lines(500);
  folder_.write("a.jsonl.gz", gzip(text).substr(0, 700));
  folder_.write("b.jsonl.zst", zstd(text).substr(0, 500));
  folder_.write("c.txt.gz", "not packed");
  EXPECT_EQ(
      error(options({"a.jsonl.gz"})),
      folder_.file("a.jsonl.gz") + ": its gzip data has no end; the file is damaged or cut short.");
  EXPECT_EQ(error(options({"b.jsonl.zst"})),
            folder_.file("b.jsonl.zst") +
                ": its Zstandard data has no end; the file is damaged or cut short.");
  EXPECT_NE(error(options({"c.txt.gz"})).find("damaged or cut short"), std::string::npos);
  EXPECT_EQ(files().size(), 4u);  // nothing was written
}

TEST_F(TokenizeTest, AnyNumberOfThreadsWritesTheSameBytes) {
  folder_.write("a.jsonl", lines(3000));
  for (const int threads : {1, 2, 5}) {
    TokenizeOptions request = options({"a.jsonl"}, std::to_string(threads));
    request.num_threads = threads;
    request.batch_bytes = 200;
    tokenize(request);
  }
  EXPECT_EQ(documents("1").size(), 3000u);
  EXPECT_EQ(folder_.read("1"), folder_.read("2"));
  EXPECT_EQ(folder_.read("1"), folder_.read("5"));
}

TEST_F(TokenizeTest, SpecialTokensAreTextUnlessAskedOtherwise) {
  folder_.write("a.txt", "a<|end|>");
  TokenizeOptions request = options({"a.txt"});
  tokenize(request);
  EXPECT_EQ(documents("out.bin"), (std::vector<Ids>{{'a', '<', '|', 'e', 'n', 'd', '|', '>'}}));
  request.to = folder_.file("other.bin");
  request.special_tokens = tokenizer::SpecialTokens::kAsTokens;
  tokenize(request);
  EXPECT_EQ(documents("other.bin"), (std::vector<Ids>{{'a', 258}}));
}

TEST_F(TokenizeTest, ShardsEndAfterTheDocumentThatReachesTheirSize) {
  folder_.write("a.jsonl", lines(100));
  TokenizeOptions request = options({"a.jsonl"}, "whole.bin");
  tokenize(request);
  request.to = folder_.file("out.bin");
  request.shard_tokens = 300;
  const TokenizeResult result = tokenize(request);
  std::vector<Ids> joined;
  for (std::int64_t shard = 0; shard < result.files; ++shard) {
    const auto part = documents("out-0000" + std::to_string(shard) + ".bin");
    std::size_t size = 0;
    for (std::size_t d = 0; d < part.size(); ++d) {
      EXPECT_LT(size, 300u);
      size += part[d].size();
      joined.push_back(part[d]);
    }
  }
  EXPECT_GT(result.files, 3);
  EXPECT_EQ(joined, documents("whole.bin"));
}

// A run is stopped after every batch in turn and resumed; the result equals that of a run without stops.
TEST_F(TokenizeTest, ARunThatWasStoppedGoesOnAndWritesTheSameBytes) {
  folder_.write("a.jsonl", lines(60));
  for (const std::int64_t shard_tokens : {0, 200}) {
    const std::string name = shard_tokens == 0 ? "whole" : "shards";
    TokenizeOptions request = options({"a.jsonl"}, name + "/out.bin");
    request.shard_tokens = shard_tokens;
    tokenize(request);
    request.to = folder_.file(name + "_again/out.bin");
    request.batch_bytes = 100;
    request.journal_tokens = 40;
    int num_stops = 0;
    while (true) {
      int num_batches = 0;
      request.on_progress = [&](const TokenizeProgress&) {
        if (++num_batches == 5) throw std::runtime_error("stopped");
      };
      try {
        const TokenizeResult result = tokenize(request);
        EXPECT_GT(result.documents_before, 0);
        EXPECT_EQ(result.documents, 60);
        break;
      } catch (const std::runtime_error& stop) {
        ASSERT_STREQ(stop.what(), "stopped");
        ASSERT_LT(++num_stops, 30);
      }
    }
    EXPECT_GT(num_stops, 3);
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file(name))) {
      const std::string file = entry.path().filename();
      EXPECT_EQ(folder_.read(name + "/" + file), folder_.read(name + "_again/" + file)) << file;
      EXPECT_FALSE(std::filesystem::exists(folder_.file(name + "_again/" + file + ".partial")));
    }
    EXPECT_FALSE(std::filesystem::exists(request.to + ".progress"));
  }
}

// The output may be among the texts: a killed run's files are no texts of the next one.
TEST_F(TokenizeTest, WhatARunWritesIsNoTextOfItsOwn) {
  folder_.write("texts/a.jsonl", lines(60));
  folder_.write("texts/out-of-the-way.bin", "a text");
  for (const std::int64_t shard_tokens : {0, 200}) {
    TokenizeOptions request = options({"texts"}, "texts/out.bin");
    request.shard_tokens = shard_tokens;
    request.batch_bytes = 100;
    request.journal_tokens = 40;
    request.on_progress = [](const TokenizeProgress& progress) {
      if (progress.documents > 30) throw std::runtime_error("stopped");
    };
    EXPECT_THROW(tokenize(request), std::runtime_error);
    request.on_progress = {};
    const TokenizeResult result = tokenize(request);
    EXPECT_GT(result.documents_before, 0);
    EXPECT_EQ(result.documents, 61);
    for (std::int64_t file = 0; file < result.files; ++file) {
      const std::string number = shard_tokens == 0 ? "" : fmt::format("-{:05}", file);
      std::filesystem::remove(folder_.file("texts/out" + number + ".bin"));
    }
  }
}

TEST_F(TokenizeTest, BinaryFilesOfAFolderAndFilesOfRunsArePassedOverAndFilesOfTokensRefused) {
  folder_.write("texts/a.txt", "the");
  folder_.write("texts/picture", {"\x89PNG\0\0", 6});
  folder_.write("texts/packed.gz", gzip(std::string("a\0b", 3)));
  folder_.write("texts/run/recipe.yaml", "run: {}");
  folder_.write("texts/run/metrics.jsonl", "{}");
  const TokenizeResult result = tokenize(options({"texts"}));
  EXPECT_EQ(documents("out.bin"), (std::vector<Ids>{{257}}));
  EXPECT_EQ(result.binary_files, 2);
  EXPECT_EQ(result.files_of_runs, 2);
  EXPECT_EQ(error(options({"out.bin"}, "again.bin")),
            folder_.file("out.bin") + ": is a file of tokens already; data.format: bin reads it.");
}

TEST_F(TokenizeTest, AStoppedRunDoesNotGoOnWithOtherTextsOrOptions) {
  folder_.write("a.jsonl", lines(60));
  TokenizeOptions request = options({"a.jsonl"});
  request.batch_bytes = 100;
  request.journal_tokens = 40;
  request.on_progress = [](const TokenizeProgress& progress) {
    if (progress.documents > 30) throw std::runtime_error("stopped");
  };
  EXPECT_THROW(tokenize(request), std::runtime_error);
  TokenizeOptions other = request;
  other.eos = true;
  EXPECT_NE(error(other).find("other options was stopped here"), std::string::npos) << error(other);
  folder_.write("a.jsonl", lines(61));
  EXPECT_NE(error(request).find("other options was stopped here"), std::string::npos);
  folder_.write("out.bin.progress", "{}");
  EXPECT_EQ(error(request),
            folder_.file("out.bin.progress") + ": is damaged; delete it to start again.");
}

TEST_F(TokenizeTest, BadLinesAreNamedAndLeftOutOnlyWhenAsked) {
  folder_.write(
      "a.jsonl",
      "{\"text\": \"a\"}\nnot json\n{\"body\": \"b\"}\n{\"text\": 7}\n{\"text\": \"c\"}\n");
  folder_.write("b.txt", "ab\xff");
  TokenizeOptions request = options({"a.jsonl", "b.txt"});
  EXPECT_EQ(error(request),
            folder_.file("a.jsonl") +
                ":2: isn't JSON; fix it, or leave bad documents out with --skip-bad.");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("out.bin")));
  std::vector<std::string> bad;
  request.skip_bad = true;
  request.on_bad_document = [&](const std::string& one) {
    bad.push_back(one.substr(folder_.path().size() + 1));
  };
  const TokenizeResult result = tokenize(request);
  EXPECT_EQ(bad, (std::vector<std::string>{"a.jsonl:2: isn't JSON", "a.jsonl:3: has no \"text\"",
                                           "a.jsonl:4: \"text\" isn't a string",
                                           "b.txt: not UTF-8 at byte 2 (0xff)"}));
  EXPECT_EQ(result.bad_documents, 4);
  EXPECT_EQ(documents("out.bin"), (std::vector<Ids>{{'a'}, {'c'}}));
}

TEST_F(TokenizeTest, WhatCantBeMetIsOneSentence) {
  const std::string text = folder_.write("a.txt", "the");
  TokenizeOptions request = options({"a.txt"});
  request.bos = true;
  EXPECT_EQ(error(request), "--bos: " + folder_.file("tokenizer") +
                                "/tokenizer_config.json names no bos_token; leave --bos out.");
  request.bos = false;
  folder_.write("out.bin", "mine");
  EXPECT_EQ(error(request),
            folder_.file("out.bin") + ": exists already; remove it, or write to another file.");
  EXPECT_EQ(folder_.read("out.bin"), "mine");
  EXPECT_NE(error(options({"none.txt"}, "x")).find("no such file"), std::string::npos);
  folder_.write("empty.txt", "");
  EXPECT_EQ(error(options({"empty.txt"}, "x")),
            folder_.file("empty.txt") + ": no documents in 1 file.");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("x")));
}

TEST_F(TokenizeTest, AFileThatAnotherRunIsWritingIsLeftAlone) {
  folder_.write("a.jsonl", lines(60));
  TokenizeOptions request = options({"a.jsonl"});
  request.batch_bytes = 100;
  int refused = 0;
  request.on_progress = [&](const TokenizeProgress&) {
    if (refused++ > 0) return;
    EXPECT_EQ(error(options({"a.jsonl"})),
              folder_.file("out.bin") +
                  ": another process is writing this file; wait until it has ended.");
  };
  tokenize(request);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(documents("out.bin").size(), 60u);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("out.bin.lock")));
}

// The journal of a run with several files has their names.
TEST_F(TokenizeTest, NamesOfTextsMayBeAnyBytes) {
  folder_.write("texts/a\xff.jsonl", lines(30));
  folder_.write("texts/b%FF.jsonl", lines(30));
  TokenizeOptions request = options({"texts"});
  request.shard_tokens = 200;
  request.batch_bytes = 100;
  request.journal_tokens = 40;
  request.on_progress = [](const TokenizeProgress& progress) {
    if (progress.documents > 30) throw std::runtime_error("stopped");
  };
  EXPECT_THROW(tokenize(request), std::runtime_error);
  request.on_progress = {};
  const TokenizeResult result = tokenize(request);
  EXPECT_GT(result.documents_before, 0);
  EXPECT_EQ(result.documents, 60);
}

TEST_F(TokenizeTest, AThreadThatTheMachineRefusesIsAnErrorInASentence) {
  folder_.write("a.txt", "the");
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  for (const int allowed : {0, 1}) {
    EXPECT_EXIT(
        {
          test::allow_threads(allowed);
          try {
            tokenize(options({"a.txt"}));
          } catch (const TrainingError& error) {
            std::fputs(error.what(), stderr);
            std::_Exit(error.exit_code());
          }
        },
        testing::ExitedWithCode(5), "refused a thread that (reads|encodes) text: .*ulimit -u");
  }
}

}  // namespace
}  // namespace sherd::data
