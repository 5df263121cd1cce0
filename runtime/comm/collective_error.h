// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CollectiveError` is the failure of a collective whose cause is known.

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

/// Its message says why the collective failed, so that no cause is guessed.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

} // namespace tessera::runtime
