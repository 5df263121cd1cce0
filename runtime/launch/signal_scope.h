// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SignalScope` turns signals into events of a poll loop.

#include "tessera/runtime/core/unique_fd.h"

#include <csignal>

namespace tessera::runtime {

/// While it exists, SIGCHLD, SIGINT, SIGTERM and SIGHUP arrive as readable
/// events on fd() instead of acting on the calling thread, and SIGPIPE becomes
/// a write error. A signal that was ignored before (nohup, a background job)
/// stays ignored. Use it on the main thread of a program without other threads.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Readable when a signal is pending.
  int fd() const {
    return fd_.get();
  }
  /// The next pending signal, or 0. Does not block.
  int next();
  /// The signal mask of the thread before this scope, for child processes.
  const sigset_t& outer_mask() const {
    return outer_mask_;
  }

 private:
  UniqueFd fd_;
  sigset_t outer_mask_;
  struct sigaction outer_child_action_ {};
};

} // namespace tessera::runtime
