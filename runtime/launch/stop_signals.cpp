// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/stop_signals.h"

#include "tessera/runtime/core/error.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace tessera::runtime {

namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

/// What the handler uses; it may run at any time on any thread.
struct HandlerState {
  std::atomic<bool> in_use{false};
  std::atomic<int> received{0};
  std::atomic<int64_t> received_ms{0};
  std::atomic<bool> ends_at_once{false};
  std::array<char, 4096> message{};
  std::atomic<size_t> message_bytes{0};
};
HandlerState handler_state;
std::array<struct sigaction, kSignals.size()> outer_actions;

/// [Note: signal stack] oneDNN's matrix products use the stack pointer for
/// other purposes, so that a handler on the ordinary stack would overwrite the
/// heap. The kernel delivers a signal to the main thread as long as that does
/// not block it, hence one stack is enough.
constexpr size_t kSignalStackBytes = size_t{64} << 10;
alignas(64) std::array<std::byte, kSignalStackBytes> signal_stack;
stack_t outer_stack;

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

/// Only async-signal-safe calls.
void on_signal(int signal) {
  constexpr int64_t kSameRequestMs = 1000;
  const int saved_errno = errno;
  if (!handler_state.ends_at_once) {
    int none = 0;
    if (handler_state.received.compare_exchange_strong(none, signal)) {
      handler_state.received_ms = now_ms();
      errno = saved_errno;
      return;
    }
    if (now_ms() - handler_state.received_ms < kSameRequestMs) {
      errno = saved_errno;
      return;
    }
  }
  [[maybe_unused]] const ssize_t written = ::write(
      STDERR_FILENO, handler_state.message.data(), handler_state.message_bytes);
  ::signal(signal, SIG_DFL);
  ::raise(signal); // delivered when this handler returns
}

} // namespace

StopSignals::StopSignals() {
  TESSERA_CHECK(
      !handler_state.in_use.exchange(true),
      "there is a StopSignals already; destroy it first");
  handler_state.received = 0;
  handler_state.ends_at_once = false;
  handler_state.message_bytes = 0;
  stack_t stack{};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  TESSERA_CHECK(
      ::sigaltstack(&stack, &outer_stack) == 0,
      "cannot set a stack for signal handlers: {}",
      std::strerror(errno));
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &outer_actions[i]);
    if (outer_actions[i].sa_handler == SIG_IGN) {
      continue;
    }
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &outer_actions[i], nullptr);
  }
  ::sigaltstack(&outer_stack, nullptr);
  handler_state.in_use = false;
}

int StopSignals::received() const {
  return handler_state.received;
}

void StopSignals::end_at_once(const std::string& message) {
  // A signal that arrives meanwhile writes no text rather than half of one.
  handler_state.message_bytes = 0;
  const size_t bytes = std::min(message.size(), handler_state.message.size());
  std::memcpy(handler_state.message.data(), message.data(), bytes);
  handler_state.message_bytes = bytes;
  handler_state.ends_at_once = true;
}

} // namespace tessera::runtime
