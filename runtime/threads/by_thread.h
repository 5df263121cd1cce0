// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ByThread` gives each thread a value of its own.

#include <map>
#include <mutex>
#include <thread>

namespace tessera::runtime {

/// Other than `thread_local`, one for each object. Values stay until the object
/// ends; that of a thread which has ended may go to a later one.
template <typename T>
class ByThread {
 public:
  /// The calling thread's, made by T() at its first call.
  T& local() {
    const std::lock_guard lock(mutex_);
    return values_[std::this_thread::get_id()];
  }

 private:
  std::mutex mutex_; ///< of the map, not of the values
  std::map<std::thread::id, T> values_;
};

} // namespace tessera::runtime
