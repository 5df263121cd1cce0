// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a rank's output, which comes in pieces, into prefixed lines.

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Collects bytes into lines and puts a prefix before each. A carriage return
/// starts the line anew, as on a terminal, so that of a progress bar only the
/// last state is kept.
class LinePrefixer {
 public:
  /// An unfinished line is broken when it gets longer than this.
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

  /// @param prefix put before every line; may be empty.
  /// @param bare_progress lines that were rewritten with a carriage return get
  ///     no prefix: for the rank whose progress bar is shown on a terminal.
  explicit LinePrefixer(std::string prefix, bool bare_progress = false);

  /// Takes the next bytes and returns the lines they complete, each with its
  /// prefix and a newline; often none.
  std::string feed(std::string_view bytes);

  /// Returns the unfinished line, if any, as a line. Call at end of file.
  std::string finish();

  /// The state of the progress bar: the unfinished line if it was rewritten
  /// with a carriage return, empty otherwise. Valid until the next call.
  std::string_view progress() const;

 private:
  void append(std::string_view text, std::string& lines);
  void end_line(std::string& lines);

  std::string prefix_;
  bool bare_progress_;
  std::string line_;
  // The line was started anew by a carriage return.
  bool rewritten_ = false;
  // A carriage return came last: the next byte decides what it means.
  bool pending_return_ = false;
};

} // namespace tessera
