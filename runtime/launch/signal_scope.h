// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signals as events of a poll loop.

#include "tessera/runtime/core/unique_fd.h"

#include <csignal>

namespace tessera {

/// While it lives, SIGCHLD and the signals that ask a program to end (SIGINT,
/// SIGTERM, SIGHUP) arrive as readable events on fd() instead of acting on the
/// calling thread, and SIGPIPE becomes a write error. A signal that was ignored
/// before (nohup, a job in the background) stays ignored. For the main thread
/// of a program without other threads.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Readable when a signal waits.
  int fd() const {
    return fd_.get();
  }
  /// The next waiting signal, or 0. Does not block.
  int next();
  /// The thread's mask from before, which a child must get back.
  const sigset_t& outer_mask() const {
    return outer_mask_;
  }

 private:
  UniqueFd fd_;
  sigset_t outer_mask_;
  struct sigaction outer_child_action_ {};
};

} // namespace tessera
