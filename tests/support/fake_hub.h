// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Hugging Face Hub on this host with one repository, for tests.

#include "support/http_server.h"
#include "support/temporary_folder.h"

#include "tessera/runtime/hub/content_hash.h"
#include "tessera/runtime/hub/hub_settings.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <string>

namespace tessera {

class FakeHub {
 public:
  /// @param api "models" or "datasets".
  /// @param files of the repository; those whose names end in ".safetensors"
  ///     are in large file storage.
  FakeHub(
      const std::string& api,
      const std::string& repository,
      std::map<std::string, std::string> files)
      : files_(std::move(files)),
        listing_("/api/" + api + "/" + repository + "/revision/"),
        resolve_(
            (api == "datasets" ? "/datasets/" : "/") + repository +
            "/resolve/"),
        server_(
            [this](const HttpRequest& request) { return answer(request); }) {}

  /// What comes in place of the right answer; set it before requests.
  std::function<
      std::optional<HttpAnswer>(const HttpRequest&, const HttpAnswer& right)>
      instead;
  std::string commit = std::string(40, 'a');
  /// In the listing, in place of the right ones.
  std::map<std::string, std::string> listed_hashes;

  const HttpServer& server() const {
    return server_;
  }
  std::map<std::string, std::string>& files() {
    return files_;
  }
  runtime::HubSettings settings(const std::filesystem::path& cache) const {
    runtime::HubSettings settings;
    settings.endpoint = server_.url();
    settings.cache = cache;
    settings.pause = std::chrono::milliseconds(1);
    return settings;
  }

 private:
  static bool is_commit(const std::string& text) {
    return text.size() == 40 &&
           text.find_first_not_of("0123456789abcdef") == std::string::npos;
  }
  static bool is_large(const std::string& path) {
    return path.ends_with(".safetensors");
  }

  std::string hash_of(const std::string& path, const std::string& content)
      const {
    if (const auto found = listed_hashes.find(path);
        found != listed_hashes.end()) {
      return found->second;
    }
    const TemporaryFolder folder;
    std::ofstream(folder / "content", std::ios::binary) << content;
    return runtime::content_hash_of(
        folder / "content",
        is_large(path) ? runtime::ContentHash::kSha256
                       : runtime::ContentHash::kGitBlob);
  }

  /// @param of the commit.
  std::string listing(const std::string& of) const {
    nlohmann::json siblings = nlohmann::json::array();
    for (const auto& [path, content] : files_) {
      nlohmann::json entry{{"rfilename", path}, {"size", content.size()}};
      if (is_large(path)) {
        entry["blobId"] = std::string(40, 'b'); // of the pointer to it
        entry["lfs"] = {
            {"sha256", hash_of(path, content)}, {"size", content.size()}};
      } else {
        entry["blobId"] = hash_of(path, content);
      }
      siblings.push_back(entry);
    }
    return nlohmann::json{{"sha", of}, {"siblings", siblings}}.dump();
  }

  HttpAnswer right_answer(const HttpRequest& request) const {
    if (request.path.starts_with(listing_)) {
      const std::string revision = request.path.substr(
          listing_.size(), request.path.find('?') - listing_.size());
      return {.body = listing(is_commit(revision) ? revision : commit)};
    }
    if (!request.path.starts_with(resolve_) ||
        !is_commit(request.path.substr(resolve_.size(), commit.size()))) {
      return {
          .status = 404,
          .body = "Not Found",
          .headers = {"X-Error-Message: Repository not found"}};
    }
    const auto found =
        files_.find(request.path.substr(resolve_.size() + commit.size() + 1));
    if (found == files_.end()) {
      return {.status = 404, .body = "Entry not found"};
    }
    const std::string& content = found->second;
    const std::string range = request.header("range"); // bytes=N-
    if (range.empty()) {
      return {.body = content};
    }
    const size_t begin = std::stoul(range.substr(range.find('=') + 1));
    if (begin >= content.size()) {
      return {.status = 416};
    }
    return {
        .status = 206,
        .body = content.substr(begin),
        .headers = {formatted(
            "Content-Range: bytes {}-{}/{}",
            begin,
            content.size() - 1,
            content.size())}};
  }

  HttpAnswer answer(const HttpRequest& request) const {
    HttpAnswer right = right_answer(request);
    if (instead) {
      if (auto other = instead(request, right)) {
        return *other;
      }
    }
    return right;
  }

  std::map<std::string, std::string> files_;
  std::string listing_;
  std::string resolve_;
  HttpServer server_; ///< last: it uses the others
};

} // namespace tessera
