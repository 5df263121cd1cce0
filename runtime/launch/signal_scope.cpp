// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/signal_scope.h"

#include "tessera/runtime/core/error.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tessera::runtime {

namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

} // namespace

SignalScope::SignalScope() {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // Blocking an ignored signal would make it pending.
    if (!is_ignored(signal)) {
      sigaddset(&watched, signal);
    }
  }
  fd_.reset(::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  TESSERA_CHECK(
      fd_.is_open(), "cannot watch for signals: {}", std::strerror(errno));

  // With SIGCHLD ignored, exit statuses would be lost.
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &default_action, &outer_child_action_);

  sigset_t blocked = watched;
  sigaddset(&blocked, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &outer_mask_);
}

SignalScope::~SignalScope() {
  // A pending SIGPIPE would be delivered as soon as it is unblocked.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec at_once{};
  while (::sigtimedwait(&pipe, nullptr, &at_once) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &outer_mask_, nullptr);
  ::sigaction(SIGCHLD, &outer_child_action_, nullptr);
}

int SignalScope::next() {
  signalfd_siginfo info{};
  const auto count = ::read(fd_.get(), &info, sizeof(info));
  return count == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

} // namespace tessera::runtime
