// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors that several ranks have word for word are shown once.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Looks for the lines of log_error(), and those that belong to the same
/// message, in what ranks write. What comes first is passed on at once, so that
/// nothing waits for anything; the same line of another rank is left out, and
/// told at the end.
class RepeatedErrors {
 public:
  /// @param prefix of this rank's lines.
  /// @param lines whole lines of one rank's standard error, each with the
  ///     prefix and a newline.
  /// @return those that no other rank has had.
  std::string without_repeated(
      int rank,
      std::string_view prefix,
      std::string_view lines);

  /// "ranks 1, 2, 3: the same error as rank 0", for each error that was left
  /// out.
  std::vector<std::string> summary() const;

 private:
  struct First {
    int rank;
    std::set<int> others;
    bool begins; ///< a message: the others go on with one
  };

  bool is_repeated(int rank, std::string_view line);

  std::map<std::string, First, std::less<>> errors_;
  /// Of each rank, the error whose lines it writes.
  std::map<int, std::string> open_;
};

} // namespace tessera
