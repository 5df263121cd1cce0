// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NumberedInit` makes the initial values of a layer independent of which other
// layers a rank constructs.

#include "tessera/runtime/random/generator_scope.h"

#include <cstdint>

namespace tessera::sharding {

/// While a `NumberedInit` is alive, the random numbers that constructors draw
/// on this thread depend on the seed of LibTorch's default generator
/// (torch::manual_seed()) and on `number`, but not on what was drawn before:
/// layer 7 starts from the same values whether or not layers 0 to 6 are
/// constructed on this rank. Works inside and outside tessera::lazy().
class NumberedInit {
 public:
  explicit NumberedInit(int64_t number);
  ~NumberedInit();
  NumberedInit(const NumberedInit&) = delete;
  NumberedInit& operator=(const NumberedInit&) = delete;

 private:
  runtime::GeneratorScope generator_;
  /// counter of the enclosing recording, to be restored
  uint64_t next_random_ = 0;
};

} // namespace tessera::sharding
