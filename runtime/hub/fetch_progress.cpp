// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/fetch_progress.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace tessera::runtime {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kQuiet = std::chrono::seconds(1);
constexpr milliseconds kOnTerminal{250};
constexpr milliseconds kInLog = std::chrono::seconds(15);

} // namespace

FetchProgress::FetchProgress(
    std::string label,
    const std::vector<HubFile>& files)
    : label_(std::move(label)),
      bytes_(files.size()),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {
  for (const HubFile& file : files) {
    total_ += file.bytes;
  }
  thread_ = std::jthread(
      [this](const std::stop_token& token) { show_until_done(token); });
}

FetchProgress::~FetchProgress() {
  thread_.request_stop();
  thread_.join();
  const Clock::duration passed = Clock::now() - start_;
  if (passed < kQuiet) {
    return;
  }
  if (is_terminal_) {
    std::fputs("\r\033[K", stderr);
  }
  log_info("{}", line(passed));
}

FileProgress FetchProgress::of_file(size_t index) {
  return [this, index, first = true](int64_t bytes) mutable {
    if (std::exchange(first, false)) {
      begun_at_ += bytes;
    }
    bytes_[index] = bytes;
  };
}

int64_t FetchProgress::bytes() const {
  int64_t sum = 0;
  for (const auto& each : bytes_) {
    sum += each;
  }
  return sum;
}

std::string FetchProgress::line(Clock::duration passed) const {
  const int64_t here = bytes();
  const double seconds = std::chrono::duration<double>(passed).count();
  const auto rate = static_cast<int64_t>(
      static_cast<double>(std::max<int64_t>(0, here - begun_at_)) / seconds);
  return formatted(
      "{}: {} of {}, {}/s",
      label_,
      size_text(here),
      size_text(total_),
      size_text(rate));
}

void FetchProgress::show_until_done(const std::stop_token& token) {
  milliseconds pause = kQuiet;
  std::unique_lock lock(mutex_);
  while (!done_.wait_for(lock, token, pause, [] { return false; }) &&
         !token.stop_requested()) {
    const std::string text = line(Clock::now() - start_);
    if (is_terminal_) {
      std::fputs(("\r\033[K" + text).c_str(), stderr);
      pause = kOnTerminal;
    } else {
      log_info("{}", text);
      pause = kInLog;
    }
  }
}

} // namespace tessera::runtime
