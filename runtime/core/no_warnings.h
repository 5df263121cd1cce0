// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NoWarnings` suppresses LibTorch's warnings on this thread.

#include <c10/util/Exception.h>

namespace tessera::runtime {

/// While it lives, LibTorch's warnings of this thread are dropped: that a
/// kernel is replaced, where that is intended.
class NoWarnings {
 private:
  struct Silence : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Silence silence_;
  c10::WarningUtils::WarningHandlerGuard guard_{&silence_};
};

} // namespace tessera::runtime
