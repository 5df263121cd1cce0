// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Console` writes to the launcher's standard output and standard error.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::runtime {

enum class ConsoleStream { kOut = 0, kErr = 1 };

/// Queues the output of the ranks and writes it without blocking, so that a
/// reader that has stopped (a pager, a paused terminal) does not keep the
/// launcher from noticing signals and ended ranks. On a terminal it keeps one
/// progress bar below the lines.
class Console {
 public:
  Console();

  /// Queues whole lines. If `progress` is given, it replaces the progress bar;
  /// an empty text ends it.
  void write(
      ConsoleStream stream,
      std::string_view lines,
      std::optional<std::string_view> progress = std::nullopt);

  /// Writes as much as the stream accepts now. If the reader is gone or the
  /// stream cannot be written, the text is dropped.
  void flush(ConsoleStream stream);

  /// The file descriptor to poll for writing, or -1 if nothing is queued.
  int fd_to_flush(ConsoleStream stream) const;
  /// True when so much is queued that output of the ranks should not be read.
  bool is_backlogged() const;
  /// True once the reader of a stream is gone (EPIPE).
  bool is_reader_gone() const;
  bool is_terminal(ConsoleStream stream) const;
  /// Width of the terminal in characters; 80 if unknown.
  int terminal_columns() const;

 private:
  struct Stream {
    int fd = -1;
    bool is_terminal = false;
    bool reader_gone = false;
    // Most bytes that one write accepts without blocking once poll reports
    // room.
    std::size_t write_bytes = 0;
    std::string queue;
  };
  Stream& at(ConsoleStream stream);
  const Stream& at(ConsoleStream stream) const;

  std::array<Stream, 2> streams_;
  std::string progress_;
};

} // namespace tessera::runtime
