// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/fetch.h"

#include "support/expect_error.h"
#include "support/fake_hub.h"
#include "support/temporary_folder.h"

#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;

std::string weights(size_t bytes, char first = 'w') {
  std::string content(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<char>(first + i % 61);
  }
  return content;
}

std::map<std::string, std::string> model() {
  return {
      {"config.json", "{\"model_type\": \"bert\"}"},
      {"tokenizer.json", "{}"},
      {"additional_chat_templates/rag.jinja", "{{ x }}"},
      {"model.safetensors", weights(300'000)},
      {"pytorch_model.bin", weights(10)},
      {"tf_model.h5", "tensorflow"},
      {"modeling_own.py", "import os"},
      {"onnx/config.json", "{}"},
      {"README.md", "# A model"}};
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!fs::is_directory(entry.path())) {
      names.insert(entry.path().lexically_relative(folder).string());
    }
  }
  return names;
}

class FetchTest : public testing::Test {
 protected:
  fs::path run(const FetchOptions& options = {}) {
    return fetch(name_, options, settings());
  }
  HubSettings settings() const {
    HubSettings settings = hub_.settings(folder_.path() / "cache");
    settings.token = token_;
    return settings;
  }
  /// Answers requests of the weights otherwise.
  void on_weights(const std::function<std::optional<HttpAnswer>(
                      const HttpRequest& request,
                      const HttpAnswer& right)>& answer) {
    hub_.instead = [answer](const auto& request, const auto& right) {
      return request.path.ends_with("model.safetensors")
                 ? answer(request, right)
                 : std::nullopt;
    };
  }
  void expect_whole() {
    EXPECT_EQ(
        read_text_file(run() / "model.safetensors"),
        hub_.files().at("model.safetensors"));
  }

  TemporaryFolder folder_;
  FakeHub hub_{"models", "org/name", model()};
  HubName name_ = parse_hub_name("hf://org/name");
  std::string token_;
};

TEST_F(FetchTest, TakesWhatAModelIsLoadedFrom) {
  const fs::path folder = run();
  EXPECT_EQ(
      files_in(folder),
      (std::set<std::string>{
          "additional_chat_templates/rag.jinja",
          "config.json",
          "model.safetensors",
          "tokenizer.json"}));
  expect_whole();
  EXPECT_EQ(read_text_file(folder / "config.json"), model()["config.json"]);
}

TEST_F(FetchTest, HasTheLayoutOfHuggingfaceHub) {
  const fs::path folder = run();
  const fs::path repository = folder_ / "cache" / "models--org--name";
  EXPECT_EQ(folder, repository / "snapshots" / hub_.commit);
  EXPECT_EQ(read_text_file(repository / "refs" / "main"), hub_.commit);
  const fs::path link = folder / "model.safetensors";
  ASSERT_TRUE(fs::is_symlink(link));
  const fs::path target = fs::read_symlink(link);
  EXPECT_TRUE(target.is_relative());
  EXPECT_EQ(target.filename().string().size(), 64u); // SHA-256
  EXPECT_EQ(
      fs::read_symlink(folder / "config.json").filename().string().size(), 40u);
  EXPECT_EQ(files_in(repository / "blobs").size(), 4u); // none incomplete
}

TEST_F(FetchTest, FetchesNothingTwice) {
  run();
  const auto before = hub_.server().count("/resolve/");
  expect_whole();
  EXPECT_EQ(hub_.server().count("/resolve/"), before);
  // A new commit with one new file: that one.
  hub_.commit = std::string(40, 'c');
  hub_.files()["config.json"] = "{\"model_type\": \"gpt2\"}";
  EXPECT_EQ(
      read_text_file(run() / "config.json"), "{\"model_type\": \"gpt2\"}");
  EXPECT_EQ(hub_.server().count("/resolve/"), before + 1);
}

TEST_F(FetchTest, DescriptionsComeWithoutWeights) {
  EXPECT_EQ(files_in(run({.weights = false})).count("model.safetensors"), 0u);
  EXPECT_EQ(files_in(run()).count("model.safetensors"), 1u);
}

TEST_F(FetchTest, WeightsInPartsComeWithTheirIndexAndNothingElse) {
  auto& files = hub_.files();
  files.erase("model.safetensors");
  files["model-00001-of-00002.safetensors"] = weights(10);
  files["model-00002-of-00002.safetensors"] = weights(20);
  files["model.safetensors.index.json"] = "{}";
  files["pytorch_model.bin.index.json"] = "{}";
  files["consolidated.safetensors"] = weights(30);
  EXPECT_EQ(
      files_in(run()),
      (std::set<std::string>{
          "additional_chat_templates/rag.jinja",
          "config.json",
          "model-00001-of-00002.safetensors",
          "model-00002-of-00002.safetensors",
          "model.safetensors.index.json",
          "tokenizer.json"}));
}

TEST_F(FetchTest, TakesOtherFilesByPattern) {
  EXPECT_EQ(
      files_in(run({.include = {"*.h5", "onnx/*"}})),
      (std::set<std::string>{"onnx/config.json", "tf_model.h5"}));
  expect_error(
      [&] { run({.include = {"*.gguf"}}); }, {"config.json", "--include"});
}

TEST_F(FetchTest, APathNamesAFileOrAFolder) {
  name_ = parse_hub_name("hf://org/name/onnx");
  EXPECT_EQ(files_in(run()), (std::set<std::string>{"config.json"}));
  name_ = parse_hub_name("hf://org/name/tf_model.h5");
  EXPECT_EQ(read_text_file(run()), "tensorflow");
  name_ = parse_hub_name("hf://org/name/missing");
  expect_error([&] { run(); }, {"hf://org/name/missing", "nothing to fetch"});
}

TEST_F(FetchTest, DataSetsHaveTheirOwnAddressesAndPatterns) {
  FakeHub data(
      "datasets",
      "org/texts",
      {{"data/train-0.jsonl", "a"},
       {"data/train-1.jsonl", "bb"},
       {"data/test.jsonl", "ccc"},
       {"tokens.bin", "dddd"},
       {"tokens.idx", "eeeee"}});
  const auto fetched = [&](const std::string& path) {
    return fetch(
        parse_hub_name("hf://datasets/org/texts/" + path),
        {},
        data.settings(folder_ / "cache"));
  };
  const fs::path pattern = fetched("data/train-*.jsonl");
  EXPECT_EQ(pattern.filename(), "train-*.jsonl");
  EXPECT_EQ(
      files_in(pattern.parent_path()),
      (std::set<std::string>{"train-0.jsonl", "train-1.jsonl"}));
  const fs::path tokens = fetched("tokens");
  EXPECT_EQ(read_text_file(tokens.string() + ".idx"), "eeeee");
  EXPECT_TRUE(
      fs::is_directory(folder_ / "cache" / "datasets--org--texts" / "blobs"));
}

TEST_F(FetchTest, GoesOnWhereAConnectionEnded) {
  std::atomic<int> answers = 0;
  on_weights([&](const HttpRequest&, const HttpAnswer& right) {
    HttpAnswer cut = right;
    if (answers++ < 3) {
      cut.cut_after = 70'000;
    }
    return std::optional(cut);
  });
  expect_whole();
  std::vector<std::string> ranges;
  for (const HttpRequest& request : hub_.server().requests()) {
    if (request.path.ends_with("model.safetensors")) {
      ranges.push_back(request.header("range"));
    }
  }
  EXPECT_EQ(
      ranges,
      (std::vector<std::string>{
          "", "bytes=70000-", "bytes=140000-", "bytes=210000-"}));
}

TEST_F(FetchTest, GoesOnInAnotherProcess) {
  on_weights([](const HttpRequest&, HttpAnswer right) {
    right.cut_after = right.body.size() > 200'000 ? 70'000 : 0;
    return std::optional(right);
  });
  expect_error([&] { run(); }, {"model.safetensors", "run it again"});
  hub_.instead = nullptr;
  expect_whole();
  EXPECT_NE(hub_.server().requests().back().header("range"), "");
}

TEST_F(FetchTest, BeginsAnewWhereTheServerDoesNotContinue) {
  std::atomic<int> answers = 0;
  on_weights([&](const HttpRequest&, const HttpAnswer&) {
    HttpAnswer from_start{.body = hub_.files().at("model.safetensors")};
    if (answers++ == 0) {
      from_start.cut_after = 70'000;
    }
    return std::optional(from_start);
  });
  expect_whole();
}

TEST_F(FetchTest, WaitsForABusyServer) {
  std::atomic<int> answers = 0;
  hub_.instead = [&](const HttpRequest&,
                     const HttpAnswer&) -> std::optional<HttpAnswer> {
    switch (answers++) {
      case 0:
        return HttpAnswer{.status = 503};
      case 1:
        return HttpAnswer{.status = 429, .headers = {"Retry-After: 0"}};
      default:
        return std::nullopt;
    }
  };
  expect_whole();
}

TEST_F(FetchTest, EndsWhereAServerStaysBusy) {
  hub_.instead = [](const HttpRequest&, const HttpAnswer&) {
    return std::optional(HttpAnswer{.status = 503});
  };
  expect_error([&] { run(); }, {"503", "/api/models/org/name"});
  EXPECT_EQ(hub_.server().count("/api/"), settings().attempts);
}

TEST_F(FetchTest, DamagedContentIsFetchedOnceMore) {
  std::atomic<int> answers = 0;
  on_weights([&](const HttpRequest&, HttpAnswer right) {
    if (answers++ == 0) {
      right.body[1234] ^= 1;
    }
    return std::optional(right);
  });
  expect_whole();
  EXPECT_EQ(answers, 2);
}

TEST_F(FetchTest, ContentThatIsNotTheListedOneIsRefused) {
  hub_.listed_hashes["config.json"] = std::string(40, '0');
  expect_error(
      [&] { run(); }, {"config.json", "hash", std::string(40, '0').c_str()});
  EXPECT_FALSE(fs::exists(
      folder_ / "cache" / "models--org--name" / "blobs" /
      std::string(40, '0')));
}

TEST_F(FetchTest, ALongerFileThanListedIsRefused) {
  on_weights([](const HttpRequest&, HttpAnswer right) {
    right.body += "more";
    return std::optional(right);
  });
  expect_error([&] { run(); }, {"300000"});
}

TEST_F(FetchTest, PathsOutsideOfTheRepositoryAreRefused) {
  for (const char* path :
       {"../../evil.json", "/etc/evil.json", "a/../b.json"}) {
    hub_.files() = model();
    hub_.files()[path] = "{}";
    expect_error([&] { run(); }, {path, "inside the repository"});
  }
  EXPECT_FALSE(fs::exists(folder_ / "cache" / "models--org--name" / "blobs"));
}

TEST_F(FetchTest, RefusalsSayWhatToDo) {
  const auto refuse = [&](int status, const std::string& message) {
    hub_.instead = [=](const HttpRequest&, const HttpAnswer&) {
      return std::optional(HttpAnswer{
          .status = status, .headers = {"X-Error-Message: " + message}});
    };
  };
  refuse(401, "Invalid username or password.");
  expect_error(
      [&] { run(); },
      {"hf://org/name", "set HF_TOKEN", "Invalid username or password."});
  token_ = "hf_secret";
  const std::string refused = error_of([&] { run(); });
  EXPECT_NE(refused.find("token that was sent"), std::string::npos) << refused;
  EXPECT_EQ(refused.find("hf_secret"), std::string::npos) << refused;
  refuse(403, "Access to model org/name is restricted.");
  expect_error([&] { run(); }, {"ask for access", "/org/name", "restricted"});
  refuse(404, "Revision Not Found");
  expect_error([&] { run(); }, {"check the name and the revision", "Revision"});
}

TEST_F(FetchTest, TheTokenStaysWithTheHub) {
  token_ = "hf_secret";
  HttpServer elsewhere([&](const HttpRequest&) {
    return HttpAnswer{.body = hub_.files().at("model.safetensors")};
  });
  on_weights([&](const HttpRequest&, const HttpAnswer&) {
    return std::optional(HttpAnswer{
        .status = 302,
        .headers = {"Location: " + elsewhere.url() + "/storage?signed=1"}});
  });
  expect_whole();
  for (const HttpRequest& request : hub_.server().requests()) {
    EXPECT_EQ(request.header("authorization"), "Bearer hf_secret");
  }
  ASSERT_EQ(elsewhere.requests().size(), 1u);
  EXPECT_EQ(elsewhere.requests().front().header("authorization"), "");
}

TEST_F(FetchTest, WithoutAConnectionTheCacheIsUsed) {
  HubSettings unreachable = settings();
  unreachable.endpoint = "http://127.0.0.1:1";
  expect_error(
      [&] { fetch(name_, {}, unreachable); },
      {"hf://org/name", "was not fetched before", "tessera fetch"});
  const fs::path folder = run();
  EXPECT_EQ(fetch(name_, {}, unreachable), folder);
  HubSettings offline = settings();
  offline.is_offline = true;
  const auto before = hub_.server().requests().size();
  EXPECT_EQ(fetch(name_, {}, offline), folder);
  name_.revision = hub_.commit;
  EXPECT_EQ(fetch(name_, {}, offline), folder);
  name_.revision = "v2";
  expect_error([&] { fetch(name_, {}, offline); }, {"HF_HUB_OFFLINE"});
  EXPECT_EQ(hub_.server().requests().size(), before);
}

TEST_F(FetchTest, ABranchMayHaveAsManyCharactersAsACommit) {
  name_.revision = "feature/" + std::string(32, 'x');
  ASSERT_EQ(name_.revision.size(), hub_.commit.size());
  const fs::path folder = run();
  EXPECT_EQ(folder.filename(), hub_.commit);
  // A commit is that one, or an error.
  name_.revision = std::string(40, 'b');
  hub_.instead = [&](const HttpRequest& request,
                     const HttpAnswer& right) -> std::optional<HttpAnswer> {
    if (request.path.find("/api/") == std::string::npos) {
      return std::nullopt;
    }
    HttpAnswer other = right;
    other.body.replace(
        other.body.find(name_.revision), name_.revision.size(), hub_.commit);
    return other;
  };
  expect_error([&] { run(); }, {"not the one that was asked for"});
}

TEST_F(FetchTest, PinnedNamesHaveTheCommit) {
  EXPECT_EQ(pinned(name_, settings()).text(), "hf://org/name");
  run();
  EXPECT_EQ(pinned(name_, settings()).text(), "hf://org/name@" + hub_.commit);
}

TEST_F(FetchTest, OneOfSeveralThreadsOfARequestFetchesAndOthersGetTheSame) {
  std::atomic<int> commits = 0;
  // The branch moves on with each request.
  hub_.instead = [&](const HttpRequest& request,
                     const HttpAnswer& right) -> std::optional<HttpAnswer> {
    if (request.path.find("/api/") == std::string::npos) {
      return std::nullopt;
    }
    if (commits++ > 0) {
      HttpAnswer moved = right;
      const auto at = moved.body.find(hub_.commit);
      moved.body.replace(at, 40, std::string(40, 'd'));
      return moved;
    }
    return std::nullopt;
  };
  std::vector<fs::path> folders(4);
  {
    std::vector<std::jthread> ranks;
    for (fs::path& folder : folders) {
      ranks.emplace_back([&] { folder = run({.takes_recent = true}); });
    }
  }
  EXPECT_EQ(std::set<fs::path>(folders.begin(), folders.end()).size(), 1u);
  EXPECT_EQ(hub_.server().count("model.safetensors"), 1);
}

TEST_F(FetchTest, AFullDiskIsSaidBeforeTheTransfer) {
  hub_.instead = [&](const HttpRequest& request,
                     const HttpAnswer& right) -> std::optional<HttpAnswer> {
    if (request.path.find("/api/") == std::string::npos) {
      return std::nullopt;
    }
    HttpAnswer huge = right;
    const auto at = huge.body.find("300000");
    huge.body.replace(at, 6, "900000000000000000");
    return huge;
  };
  hub_.files() = {{"model.safetensors", weights(300'000)}};
  expect_error([&] { run(); }, {"free", "HF_HOME"});
  EXPECT_EQ(hub_.server().count("/resolve/"), 0);
}

} // namespace
} // namespace tessera::runtime
