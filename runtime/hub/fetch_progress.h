// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FetchProgress` shows how far a fetch is: a line that is rewritten on a
// terminal, else one now and then.

#include "tessera/runtime/hub/http_client.h"
#include "tessera/runtime/hub/hub_listing.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::runtime {

/// From construction to destruction, by a thread of its own, on stderr. Nothing
/// is shown of what takes less than a second; else the last line says what
/// came and how fast.
class FetchProgress {
 public:
  FetchProgress(std::string label, const std::vector<HubFile>& files);
  ~FetchProgress();
  FetchProgress(const FetchProgress&) = delete;
  FetchProgress& operator=(const FetchProgress&) = delete;

  /// For one thread at a time.
  FileProgress of_file(size_t index);

 private:
  using Clock = std::chrono::steady_clock;

  int64_t bytes() const;
  std::string line(Clock::duration passed) const;
  void show_until_done(const std::stop_token& token);

  std::string label_;
  int64_t total_ = 0;
  std::vector<std::atomic<int64_t>> bytes_; ///< of each file
  std::atomic<int64_t> begun_at_ = 0; ///< bytes that were here before
  const bool is_terminal_;
  Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable_any done_;
  std::jthread thread_; ///< last: it uses the others
};

} // namespace tessera::runtime
