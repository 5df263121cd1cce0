// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/fetch.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/hub/fetch_progress.h"
#include "tessera/runtime/hub/http_client.h"
#include "tessera/runtime/hub/hub_cache.h"
#include "tessera/runtime/hub/hub_listing.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/posix_file.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

namespace tessera::runtime {

namespace {

namespace fs = std::filesystem;

/// The lock of a repository's fetches; no hash has this name.
const std::string kRepositoryLock = "tessera";

class Fetch {
 public:
  Fetch(
      const HubName& name,
      const FetchOptions& options,
      const HubSettings& settings)
      : name_(name),
        options_(options),
        settings_(settings),
        cache_(settings.cache, name) {}

  fs::path run() {
    if (settings_.is_offline) {
      return from_cache("HF_HUB_OFFLINE is set");
    }
    const UniqueFd lock = cache_.lock(kRepositoryLock, name_.text());
    if (options_.takes_recent) {
      if (const auto commit = recent_commit()) {
        return place(*commit);
      }
    }
    std::optional<HubListing> listing;
    try {
      listing = list();
    } catch (const HttpError& error) {
      if (error.status() != 0) {
        throw;
      }
      return from_cache(error.what());
    }
    const std::vector<HubFile> wanted = chosen(*listing);
    cache_.make_folders(listing->commit);
    fetch_missing(*listing, wanted);
    cache_.set_commit(name_.revision, listing->commit);
    note_recent(lock, listing->commit);
    return place(listing->commit);
  }

 private:
  fs::path place(const std::string& commit) const {
    const fs::path snapshot = cache_.snapshot(commit);
    return name_.path.empty() ? snapshot : snapshot / name_.path;
  }

  /// @throws tessera::Error naming the reason if it was never fetched.
  fs::path from_cache(const std::string& reason) const {
    const auto commit = cache_.known_commit(name_.revision);
    TESSERA_CHECK(
        commit && fs::is_directory(cache_.snapshot(*commit)),
        "'{}' was not fetched before, and cannot be now: {}. Fetch it on a machine with a connection (`tessera fetch {}`), and copy '{}' here",
        name_.text(),
        reason,
        name_.text(),
        settings_.cache.string());
    log_info(
        "{}: takes what was fetched before, commit {}: {}",
        name_.text(),
        *commit,
        reason);
    return place(*commit);
  }

  HubListing list() const {
    const std::string url = listing_url(settings_.endpoint, name_);
    try {
      HubListing listing = read_listing(HttpClient(settings_).get(url), url);
      TESSERA_CHECK(
          !is_commit(name_.revision) || name_.revision == listing.commit,
          "{}: this is commit {}, not the one that was asked for; check HF_ENDPOINT",
          url,
          listing.commit);
      return listing;
    } catch (const HttpError& error) {
      fail_refused(error);
    }
  }

  /// Adds the remedy to a refusal.
  [[noreturn]] void fail_refused(const HttpError& error) const {
    const char* const kind = name_.is_data_set ? "data set" : "model";
    const std::string page = formatted(
        "{}/{}{}",
        settings_.endpoint,
        name_.is_data_set ? "datasets/" : "",
        name_.repository);
    constexpr int64_t kUnauthorized = 401;
    constexpr int64_t kForbidden = 403;
    constexpr int64_t kNotFound = 404;
    switch (error.status()) {
      case kUnauthorized:
        throw HttpError(
            settings_.token.empty()
                ? formatted(
                      "'{}' does not exist, or needs a token. Check the name; for a private or gated {} set HF_TOKEN (https://huggingface.co/settings/tokens). {}",
                      name_.text(),
                      kind,
                      error.what())
                : formatted(
                      "'{}' does not exist, or the token that was sent (HF_TOKEN or the file 'token' in HF_HOME) does not allow it. {}",
                      name_.text(),
                      error.what()),
            error.status());
      case kForbidden:
        throw HttpError(
            formatted(
                "'{}' is not open to you: ask for access at {}, and set HF_TOKEN to a token of your account. {}",
                name_.text(),
                page,
                error.what()),
            error.status());
      case kNotFound:
        throw HttpError(
            formatted(
                "there is no '{}': check the name and the revision at {}. {}",
                name_.text(),
                page,
                error.what()),
            error.status());
      default:
        throw error;
    }
  }

  bool is_wanted(const std::string& path) const {
    const auto matches = [&path](const std::string& pattern) {
      return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
    };
    if (!options_.include.empty()) {
      return std::any_of(
          options_.include.begin(), options_.include.end(), matches);
    }
    const std::string& asked = name_.path;
    return asked.empty() || path == asked || path == asked + ".bin" ||
           path == asked + ".idx" || path.starts_with(asked + "/") ||
           matches(asked);
  }

  std::vector<HubFile> chosen(const HubListing& listing) const {
    const auto& files = listing.files;
    const bool names_file =
        std::any_of(files.begin(), files.end(), [this](const HubFile& file) {
          return file.path == name_.path;
        });
    std::vector<HubFile> wanted;
    if (name_.is_data_set || names_file || !options_.include.empty()) {
      std::copy_if(
          files.begin(),
          files.end(),
          std::back_inserter(wanted),
          [this](const HubFile& file) { return is_wanted(file.path); });
    } else {
      wanted = model_files(listing, name_.path, options_.weights);
    }
    if (wanted.empty()) {
      std::string some;
      constexpr size_t kNamed = 12;
      for (size_t i = 0; i < std::min(kNamed, files.size()); ++i) {
        some += (some.empty() ? "" : ", ") + files[i].path;
      }
      TESSERA_FAIL(
          "'{}' has nothing to fetch: its {} files are {}{}; name one, or choose by --include",
          name_.text(),
          files.size(),
          some,
          files.size() > kNamed ? ", ..." : "");
    }
    return wanted;
  }

  void fetch_missing(
      const HubListing& listing,
      const std::vector<HubFile>& wanted) {
    std::vector<HubFile> missing;
    int64_t bytes = 0;
    for (const HubFile& file : wanted) {
      if (has_blob(file)) {
        cache_.link(listing.commit, file);
        continue;
      }
      const bool twice = std::any_of(
          missing.begin(), missing.end(), [&file](const HubFile& other) {
            return other.hash == file.hash;
          });
      if (!twice) {
        bytes += file.bytes - std::min(file.bytes, partial_bytes(file));
        missing.push_back(file);
      }
    }
    check_space(bytes);
    if (!missing.empty()) {
      FetchProgress progress(name_.text(), missing);
      in_threads(missing.size(), [&](size_t i) {
        fetch_blob(listing.commit, missing[i], progress.of_file(i));
      });
    }
    for (const HubFile& file : wanted) {
      cache_.link(listing.commit, file);
    }
  }

  bool has_blob(const HubFile& file) const {
    std::error_code code;
    const auto bytes = fs::file_size(cache_.blob(file), code);
    return !code && static_cast<int64_t>(bytes) == file.bytes;
  }

  fs::path partial_file(const HubFile& file) const {
    return cache_.blob(file).string() + ".incomplete";
  }

  int64_t partial_bytes(const HubFile& file) const {
    std::error_code code;
    const auto bytes = fs::file_size(partial_file(file), code);
    return code ? 0 : static_cast<int64_t>(bytes);
  }

  void check_space(int64_t bytes) const {
    std::error_code code;
    const fs::space_info space = fs::space(settings_.cache, code);
    TESSERA_CHECK(
        code || static_cast<int64_t>(space.available) >= bytes,
        "'{}' needs {} more in '{}', which has {} free; make room, or set HF_HOME to a folder on another disk",
        name_.text(),
        size_text(bytes),
        settings_.cache.string(),
        size_text(static_cast<int64_t>(space.available)));
  }

  /// Calls the function with each index, several at once. The first error ends
  /// the others.
  template <typename Function>
  void in_threads(size_t count, const Function& function) {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr first;
    const auto work = [&] {
      for (size_t i = next++; i < count && !stops_; i = next++) {
        try {
          function(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!stops_.exchange(true)) {
            first = std::current_exception();
          }
        }
      }
    };
    std::vector<std::jthread> threads;
    const size_t wanted = std::min(
        count, static_cast<size_t>(std::max(1, settings_.files_at_once)));
    for (size_t i = 0; i < wanted; ++i) {
      threads.emplace_back(work);
    }
    threads.clear();
    if (first) {
      std::rethrow_exception(first);
    }
  }

  void fetch_blob(
      const std::string& commit,
      const HubFile& file,
      const FileProgress& progress) {
    const UniqueFd lock = cache_.lock(file.hash, file.path);
    if (has_blob(file)) {
      return; // by another program, meanwhile
    }
    const fs::path partial = partial_file(file);
    const UniqueFd fd(
        ::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!fd.is_open()) {
      detail::fail_on("create", partial, errno);
    }
    const std::string url =
        file_url(settings_.endpoint, name_, commit, file.path);
    const FileProgress reported = [&](int64_t bytes) {
      TESSERA_CHECK(!stops_, "{}: another file failed", file.path);
      progress(bytes);
    };
    std::string hash;
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        HttpClient(settings_).download(url, fd.get(), file.bytes, reported);
      } catch (const HttpError& error) {
        TESSERA_CHECK(
            error.status() != 0,
            "{}. What has come is kept: run it again to go on",
            error.what());
        fail_refused(error);
      }
      hash = content_hash_of(partial, file.kind);
      if (hash == file.hash) {
        store(fd.get(), partial, cache_.blob(file));
        return;
      }
      // What was there before may have been damaged.
      if (::ftruncate(fd.get(), 0) != 0) {
        detail::fail_on("empty", partial, errno);
      }
    }
    TESSERA_FAIL(
        "{}: the content that came has the hash {}, but the repository says {}: something between here and the Hub changes files; try another connection, or HF_ENDPOINT",
        url,
        hash,
        file.hash);
  }

  static void store(int fd, const fs::path& partial, const fs::path& blob) {
    if (::fsync(fd) != 0) {
      detail::fail_on("write", partial, errno);
    }
    std::error_code code;
    fs::rename(partial, blob, code);
    if (code) {
      detail::fail_on("rename", partial, code.value());
    }
    detail::sync_folder(blob.parent_path());
  }

  /// What the last fetch of the repository was of, in the file of its lock.
  std::string request() const {
    std::string text = formatted(
        "{}\n{}\n{}",
        name_.revision,
        name_.path,
        options_.weights ? "with weights" : "without weights");
    for (const std::string& pattern : options_.include) {
      text += "\n" + pattern;
    }
    return text;
  }

  std::optional<std::string> recent_commit() const {
    constexpr std::chrono::minutes kRecent{1};
    const fs::path file = cache_.lock_file(kRepositoryLock);
    std::error_code code;
    const auto written = fs::last_write_time(file, code);
    if (code || fs::file_time_type::clock::now() - written > kRecent) {
      return std::nullopt;
    }
    const std::string text = read_text_file(file);
    const size_t end = text.find('\n');
    return end != std::string::npos && text.substr(end + 1) == request()
               ? std::optional(text.substr(0, end))
               : std::nullopt;
  }

  /// Failures do not matter: then the next process asks the Hub.
  void note_recent(const UniqueFd& lock, const std::string& commit) const {
    const std::string text = commit + "\n" + request();
    if (::ftruncate(lock.get(), 0) == 0) {
      [[maybe_unused]] const ssize_t written =
          ::pwrite(lock.get(), text.data(), text.size(), 0);
    }
  }

  const HubName& name_;
  const FetchOptions& options_;
  const HubSettings& settings_;
  HubCache cache_;
  std::atomic<bool> stops_ = false;
};

} // namespace

fs::path fetch(
    const HubName& name,
    const FetchOptions& options,
    const HubSettings& settings) {
  return Fetch(name, options, settings).run();
}

HubName pinned(const HubName& name, const HubSettings& settings) {
  HubName found = name;
  found.revision = HubCache(settings.cache, name)
                       .known_commit(name.revision)
                       .value_or(name.revision);
  return found;
}

fs::path local_path(const fs::path& path, bool weights) {
  return is_hub_name(path.native())
             ? fetch(
                   parse_hub_name(path.native()),
                   {.weights = weights, .takes_recent = true})
             : path;
}

fs::path local_model(const fs::path& path) {
  std::error_code code;
  if (!is_hub_name(path.native()) && !fs::exists(path, code)) {
    if (const auto name = hub_name_of_model(path.native())) {
      try {
        return fetch(*name, {.takes_recent = true});
      } catch (const Error& error) {
        TESSERA_FAIL(
            "'{}' is not a folder here, and as a model of the Hub: {}",
            path.string(),
            error.what());
      }
    }
  }
  return local_path(path);
}

} // namespace tessera::runtime
