// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StopFilter` passes a text on, piece by piece, up to the first stop string.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// Holds back what may be the beginning of a stop string, so that nothing of
/// one is ever passed on.
class StopFilter {
 public:
  /// @param stops none of them empty.
  explicit StopFilter(std::vector<std::string> stops);

  /// The text that can be passed on now that `fragment` has come. After a stop
  /// string: nothing.
  std::string add(std::string_view fragment);

  /// What was held back, when no more comes. Nothing after a stop string.
  std::string finish();

  bool is_stopped() const {
    return is_stopped_;
  }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool is_stopped_ = false;
};

} // namespace tessera::zoo
