// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/http_client.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/posix_error.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <exception>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

namespace tessera::runtime {

namespace {

using std::chrono::milliseconds;

/// Of what is kept in memory: listings, and the text of refusals.
constexpr size_t kMaxBodyBytes = size_t{64} << 20;
constexpr milliseconds kMaxPause = std::chrono::seconds(30);

constexpr int64_t kOk = 200;
constexpr int64_t kPartialContent = 206;
constexpr int64_t kRangeNotSatisfiable = 416;

struct FreeCurl {
  void operator()(CURL* curl) const {
    curl_easy_cleanup(curl);
  }
  void operator()(curl_slist* list) const {
    curl_slist_free_all(list);
  }
};

/// One request, and what libcurl's callbacks do for it.
class Transfer {
 public:
  Transfer(const HubSettings& settings, const std::string& url)
      : curl_(curl_easy_init()) {
    TESSERA_CHECK(curl_ != nullptr, "libcurl has no memory for a transfer");
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, 10L);
    const char* const schemes =
        url.starts_with("https:") ? "https" : "http,https";
    set(CURLOPT_PROTOCOLS_STR, schemes);
    set(CURLOPT_REDIR_PROTOCOLS_STR, schemes);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_USERAGENT, "tessera");
    set(CURLOPT_CONNECTTIMEOUT,
        static_cast<long>(settings.connect_timeout.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME,
        static_cast<long>(settings.stall_timeout.count()));
    set(CURLOPT_ERRORBUFFER, error_.data());
    if (!settings.token.empty()) {
      const std::string header = "Authorization: Bearer " + settings.token;
      headers_.reset(curl_slist_append(nullptr, header.c_str()));
      set(CURLOPT_HTTPHEADER, headers_.get());
    }
    set(CURLOPT_HEADERFUNCTION, &Transfer::header_callback);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Transfer::write_callback);
    set(CURLOPT_WRITEDATA, this);
  }

  /// The body of a success goes to the file, from `offset` or the beginning.
  void write_to(
      int fd,
      int64_t offset,
      int64_t bytes,
      const FileProgress& progress) {
    fd_ = fd;
    offset_ = offset;
    bytes_ = bytes;
    progress_ = &progress;
    if (offset > 0) {
      set(CURLOPT_RANGE, formatted("{}-", offset).c_str());
    }
  }

  /// @throws what a callback threw.
  HttpResponse perform() {
    const CURLcode code = curl_easy_perform(curl_.get());
    if (thrown_) {
      std::rethrow_exception(thrown_);
    }
    HttpResponse response;
    long status = 0;
    curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
    response.status = code == CURLE_OK ? status : 0;
    response.is_reached = code != CURLE_COULDNT_RESOLVE_HOST &&
                          code != CURLE_COULDNT_RESOLVE_PROXY &&
                          code != CURLE_COULDNT_CONNECT;
    response.body = std::move(body_);
    response.message = code == CURLE_OK ? error_message_
                       : error_.front() != '\0'
                           ? std::string(error_.data())
                           : std::string(curl_easy_strerror(code));
    return response;
  }

  /// That the server asks for.
  milliseconds pause() const {
    curl_off_t seconds = 0;
    curl_easy_getinfo(curl_.get(), CURLINFO_RETRY_AFTER, &seconds);
    return std::chrono::seconds(seconds);
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(curl_.get(), option, value);
    TESSERA_CHECK(
        code == CURLE_OK,
        "libcurl refuses option {}: {}",
        static_cast<int>(option),
        curl_easy_strerror(code));
  }

  int64_t status() const {
    long status = 0;
    curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }

  static size_t header_callback(
      const char* data,
      size_t,
      size_t size,
      void* self) {
    static_cast<Transfer*>(self)->read_header({data, size});
    return size;
  }

  static size_t write_callback(
      const char* data,
      size_t,
      size_t size,
      void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    try {
      transfer->take({data, size});
      return size;
    } catch (...) {
      transfer->thrown_ = std::current_exception();
      return 0;
    }
  }

  void read_header(std::string_view line) {
    const size_t colon = line.find(':');
    if (line.starts_with("HTTP/")) { // the next response, after a redirect
      error_message_.clear();
      begins_at_ = -1;
      return;
    }
    if (colon == std::string_view::npos) {
      return;
    }
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(), [](char c) {
      return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    });
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && std::isspace(value.front()) != 0) {
      value.remove_prefix(1);
    }
    while (!value.empty() && std::isspace(value.back()) != 0) {
      value.remove_suffix(1);
    }
    if (name == "x-error-message") {
      error_message_ = value;
    } else if (name == "content-range" && value.starts_with("bytes ")) {
      value.remove_prefix(std::string_view("bytes ").size());
      std::from_chars(value.data(), value.data() + value.size(), begins_at_);
    }
  }

  void take(std::string_view data) {
    const int64_t code = status();
    if (fd_ < 0 || (code != kOk && code != kPartialContent)) {
      TESSERA_CHECK(
          body_.size() + data.size() <= kMaxBodyBytes,
          "the server's answer is longer than {} bytes; check HF_ENDPOINT",
          kMaxBodyBytes);
      body_ += data;
      return;
    }
    if (!begun_) {
      begun_ = true;
      if (code == kOk || begins_at_ != offset_) { // from the beginning
        TESSERA_CHECK(
            code == kOk || begins_at_ == 0,
            "the server sends bytes from {}, but was asked for those from {}",
            begins_at_,
            offset_);
        offset_ = 0;
        check_written(::ftruncate(fd_, 0));
      }
    }
    TESSERA_CHECK(
        offset_ + static_cast<int64_t>(data.size()) <= bytes_,
        "the server sends more than the {} bytes that the repository lists",
        bytes_);
    while (!data.empty()) {
      const ssize_t written = ::pwrite(fd_, data.data(), data.size(), offset_);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      check_written(written);
      offset_ += written;
      data.remove_prefix(static_cast<size_t>(written));
    }
    (*progress_)(offset_);
  }

  static void check_written(ssize_t result) {
    TESSERA_CHECK(
        result >= 0,
        "cannot write: {}; what has come is kept, make room and try again",
        detail::errno_text(errno));
  }

  std::unique_ptr<CURL, FreeCurl> curl_;
  std::unique_ptr<curl_slist, FreeCurl> headers_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  std::string error_message_; ///< the header X-Error-Message
  std::string body_;
  int64_t begins_at_ = -1; ///< of a part
  int fd_ = -1;
  int64_t offset_ = 0;
  int64_t bytes_ = 0;
  const FileProgress* progress_ = nullptr;
  bool begun_ = false;
  std::exception_ptr thrown_;
};

bool may_pass(int64_t status) {
  constexpr std::array<int64_t, 7> kPassing{0, 408, 429, 500, 502, 503, 504};
  return std::find(kPassing.begin(), kPassing.end(), status) != kPassing.end();
}

std::string described(const HttpResponse& response) {
  if (response.status == 0) {
    return response.message;
  }
  return response.message.empty()
             ? formatted("status {}", response.status)
             : formatted(
                   "status {}, \"{}\"", response.status, response.message);
}

/// Sleeps before another attempt.
void wait_for_attempt(
    const HubSettings& settings,
    const std::string& url,
    const HttpResponse& response,
    int attempt,
    milliseconds asked) {
  const milliseconds backoff =
      std::min(kMaxPause, settings.pause * (1 << std::min(attempt - 1, 10)));
  const milliseconds pause = std::max(backoff, std::min(asked, 4 * kMaxPause));
  log_info(
      "{}: {}; trying again in {} s ({} of {})",
      url,
      described(response),
      static_cast<double>(pause.count()) / 1e3,
      attempt + 1,
      settings.attempts);
  std::this_thread::sleep_for(pause);
}

int64_t size_of(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  TESSERA_CHECK(
      size >= 0, "cannot read a file's size: {}", detail::errno_text(errno));
  return size;
}

} // namespace

HttpClient::HttpClient(HubSettings settings) : settings_(std::move(settings)) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  TESSERA_CHECK(
      started == CURLE_OK,
      "libcurl does not start: {}",
      curl_easy_strerror(started));
}

std::string HttpClient::get(const std::string& url) const {
  for (int attempt = 1;; ++attempt) {
    Transfer transfer(settings_, url);
    HttpResponse response = transfer.perform();
    if (response.status == kOk) {
      return std::move(response.body);
    }
    if (!may_pass(response.status) || !response.is_reached ||
        attempt >= settings_.attempts) {
      throw HttpError(
          formatted("{}: {}", url, described(response)), response.status);
    }
    wait_for_attempt(settings_, url, response, attempt, transfer.pause());
  }
}

void HttpClient::download(
    const std::string& url,
    int fd,
    int64_t bytes,
    const FileProgress& progress) const {
  int attempt = 1;
  while (true) {
    const int64_t before = size_of(fd);
    if (before == bytes) {
      return;
    }
    Transfer transfer(settings_, url);
    transfer.write_to(fd, before < bytes ? before : 0, bytes, progress);
    HttpResponse response = transfer.perform();
    const int64_t after = size_of(fd);
    if (after == bytes) {
      return;
    }
    if (after > before) { // it goes on, however often it is interrupted
      attempt = 1;
    }
    if (response.status == kRangeNotSatisfiable && before > 0) {
      TESSERA_CHECK(
          ::ftruncate(fd, 0) == 0,
          "cannot empty a file: {}",
          detail::errno_text(errno));
    } else if (response.status == kOk || response.status == kPartialContent) {
      response.message = formatted("{} of {} bytes came", after, bytes);
      response.status = 0;
    }
    if ((!may_pass(response.status) &&
         response.status != kRangeNotSatisfiable) ||
        attempt >= settings_.attempts) {
      throw HttpError(
          formatted("{}: {}", url, described(response)), response.status);
    }
    wait_for_attempt(settings_, url, response, attempt, transfer.pause());
    ++attempt;
  }
}

} // namespace tessera::runtime
