// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StopSignals` lets a process finish its work when it is asked to end.

#include <string>

namespace tessera::runtime {

/// While it exists, the first SIGINT, SIGTERM or SIGHUP is only noted for
/// received(); a second one ends the process as it would have without this
/// object. Signals within a second of the first count as the same request:
/// launchers and terminals may both deliver it. A signal that was ignored
/// before stays ignored. One object at a time, made and destroyed on the main
/// thread ([Note: signal stack]).
class StopSignals {
 public:
  StopSignals();
  /// Restores the earlier handlers.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that was received first, or 0.
  int received() const;

  /// From now on the first signal ends the process, after `message` was written
  /// to standard error. A signal that was received earlier has no effect.
  /// @param message at most 4000 bytes.
  void end_at_once(const std::string& message);

  /// The exit code of a process that ended because of a signal: 128 + signal.
  static int exit_code(int signal) {
    return 128 + signal;
  }
};

} // namespace tessera::runtime
