// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RowReport` counts the rows that are left out, or lose tokens, when they are
// made into tokens, and logs how many.

#include "tessera/runtime/core/error.h"
#include "tessera/text/rows/text_rows.h"

#include <cstdint>
#include <string>

namespace tessera::tasks {

class RowReport {
 public:
  /// @param unit "row", "text".
  /// @param shown of the rows that are left out, so many are logged.
  explicit RowReport(
      std::string unit,
      text::BadRows bad_rows = text::BadRows::kError,
      int64_t shown = 1)
      : unit_(std::move(unit)), bad_rows_(bad_rows), shown_(shown) {}

  /// Calls `make`, of which an Error leaves out the row with BadRows::kSkip.
  /// @return whether it is left in.
  /// @throws Error as `make` with BadRows::kError.
  template <typename Make>
  bool use(const Make& make) {
    try {
      make();
    } catch (const Error& error) {
      skip(error);
      return false;
    }
    return true;
  }
  /// Counts a row that is left in.
  void add(bool is_truncated) {
    ++rows_;
    truncated_ += is_truncated ? 1 : 0;
  }

  /// @param name of the rows, a file.
  /// @param limit of their tokens: "model.max_length".
  void log_truncated(
      const std::string& name,
      const std::string& limit,
      int64_t max_length) const;
  /// @param name of the rows and what is wrong with them: "'FILE' with unknown
  ///     labels".
  void log_skipped(const std::string& name) const;

 private:
  /// Of the error that is being handled.
  void skip(const Error& error);

  std::string unit_;
  text::BadRows bad_rows_;
  int64_t shown_;
  int64_t rows_ = 0;
  int64_t truncated_ = 0;
  int64_t skipped_ = 0;
};

} // namespace tessera::tasks
