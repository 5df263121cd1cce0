// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fresh parameters of models of which a rank makes some layers only.

#include "tessera/sharding/parallel/generator_scope.h"

#include <cstdint>

namespace tessera {

/// While it lives, what constructors draw on this thread follows from the seed
/// of LibTorch's default generator (torch::manual_seed()) and `number`, and not
/// from what was drawn before: layer 7 starts from the same values whether or
/// not layers 0 to 6 were made here. Inside of tessera::lazy() or outside.
class NumberedInit {
 public:
  explicit NumberedInit(int64_t number);
  ~NumberedInit();
  NumberedInit(const NumberedInit&) = delete;
  NumberedInit& operator=(const NumberedInit&) = delete;

 private:
  GeneratorScope generator_;
  uint64_t next_random_ = 0; ///< of the recording around, to go on from
};

} // namespace tessera
