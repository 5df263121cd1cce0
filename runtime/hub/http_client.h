// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HttpClient` makes requests over libcurl: those that fail for a while are
// made again, and a file goes on where it stopped.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/hub/hub_settings.h"

#include <cstdint>
#include <functional>
#include <string>

namespace tessera::runtime {

struct HttpResponse {
  int64_t status = 0; ///< 0: there was none
  bool is_reached = true; ///< whether there was a connection
  std::string body; ///< of a file's download: of a refusal only
  std::string message; ///< the server's own words, or those of libcurl
};

/// Answers other than success, and connections that fail until the last
/// attempt.
class HttpError : public Error {
 public:
  HttpError(const std::string& message, int64_t status)
      : Error(message), status_(status) {}
  /// 0 if the server did not answer.
  int64_t status() const {
    return status_;
  }

 private:
  int64_t status_;
};

/// Called with the bytes of a file that have come so far; throws to stop.
using FileProgress = std::function<void(int64_t bytes)>;

/// Follows redirects, to other hosts without the token. Proxies are as
/// libcurl's environment variables say. One thread uses a client at a time;
/// every request blocks.
class HttpClient {
 public:
  explicit HttpClient(HubSettings settings);

  /// Whether a server can be reached is not tried twice.
  /// @throws HttpError.
  std::string get(const std::string& url) const;

  /// Appends to the file what it lacks of `bytes`; begins anew if the server
  /// does not continue.
  /// @param fd of a file that is open for writing.
  /// @throws HttpError; tessera::Error if the file cannot be written.
  void download(
      const std::string& url,
      int fd,
      int64_t bytes,
      const FileProgress& progress) const;

 private:
  HubSettings settings_;
};

} // namespace tessera::runtime
