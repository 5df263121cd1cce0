// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RepeatedErrors` filters out errors that another rank has already reported
// word for word.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

/// Looks for lines of log_error(), and the lines that belong to the same
/// message, in the output of ranks. The first occurrence is passed on at once,
/// so nothing is delayed; later ones from other ranks are dropped and listed in
/// the summary.
class RepeatedErrors {
 public:
  /// @param prefix of this rank's lines.
  /// @param lines whole lines of one rank's standard error, each with prefix
  ///   and newline.
  /// @return the lines that no other rank has written before.
  std::string without_repeated(
      int rank,
      std::string_view prefix,
      std::string_view lines);

  /// "ranks 1, 2, 3: the same error as rank 0": one line per rank whose errors
  /// other ranks have repeated.
  std::vector<std::string> summary() const;

 private:
  struct First {
    int rank;
    std::set<int> others;
    bool begins; ///< first line of a message; others continue one
  };

  bool is_repeated(int rank, std::string_view line);

  std::map<std::string, First, std::less<>> errors_;
  /// By rank, the error that its lines belong to.
  std::map<int, std::string> open_;
};

} // namespace tessera::runtime
