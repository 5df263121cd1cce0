// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LinePrefixer` splits the output of a rank into lines and puts a prefix
// before each.

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// Collects bytes into lines and puts a prefix before each. A carriage return
/// restarts the line, as on a terminal, so only the final state of a progress
/// bar is kept.
class LinePrefixer {
 public:
  /// A line without an end is broken when it gets longer than this.
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

  /// @param prefix put before every line; may be empty.
  /// @param bare_progress lines rewritten with a carriage return get no prefix;
  ///   for the rank whose progress bar is shown on a terminal.
  explicit LinePrefixer(std::string prefix, bool bare_progress = false);

  /// Takes the next bytes and returns the lines that they complete, often none,
  /// each with prefix and newline.
  std::string feed(std::string_view bytes);

  /// Returns the unfinished line, if any, as a line. Call it at end of file.
  std::string finish();

  /// The state of the progress bar: the unfinished line if it was rewritten
  /// with a carriage return, else empty. Valid until the next call.
  std::string_view progress() const;

 private:
  void append(std::string_view text, std::string& lines);
  void end_line(std::string& lines);

  std::string prefix_;
  bool bare_progress_;
  std::string line_;
  // A carriage return has restarted the line.
  bool rewritten_ = false;
  // The last byte was a carriage return; the next one decides what it means.
  bool pending_return_ = false;
};

} // namespace tessera::runtime
