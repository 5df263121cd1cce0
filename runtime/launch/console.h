// SPDX-License-Identifier: Apache-2.0
#pragma once
// The launcher's own standard output and standard error.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

enum class ConsoleStream { kOut = 0, kErr = 1 };

/// Queues what the ranks print and writes it without blocking, so that a
/// reader that has stopped (a pager, a terminal on hold) does not keep the
/// launcher from noticing signals and dead ranks. On a terminal it keeps one
/// progress bar below the lines.
class Console {
 public:
  Console();

  /// Queues whole lines. `progress`, where given, becomes the progress bar;
  /// empty text ends it.
  void write(
      ConsoleStream stream,
      std::string_view lines,
      std::optional<std::string_view> progress = std::nullopt);

  /// Writes what the stream takes now. A stream whose reader is gone, or that
  /// cannot be written, drops its text.
  void flush(ConsoleStream stream);

  /// The descriptor to poll for writing, or -1 when nothing waits.
  int fd_to_flush(ConsoleStream stream) const;
  /// True when so much waits that the ranks should wait too.
  bool is_backlogged() const;
  /// True once a stream's reader has gone (EPIPE).
  bool is_reader_gone() const;
  bool is_terminal(ConsoleStream stream) const;
  /// Characters in a line of the terminal; 80 when it does not say.
  int terminal_columns() const;

 private:
  struct Stream {
    int fd = -1;
    bool is_terminal = false;
    bool reader_gone = false;
    // The most that one write takes without blocking once poll reports room.
    std::size_t write_bytes = 0;
    std::string queue;
  };
  Stream& at(ConsoleStream stream);
  const Stream& at(ConsoleStream stream) const;

  std::array<Stream, 2> streams_;
  std::string progress_;
};

} // namespace tessera
