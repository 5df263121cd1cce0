// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random numbers of each rank's own, inside divided layers.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/generator_scope.h"

namespace tessera {

/// While it lives, LibTorch's default generator of `device` gives every rank of
/// the group numbers of its own; before and afterwards it gives all of them the
/// same, if it has been seeded so. Put it around dropout on features, heads or
/// sequence parts, and leave dropout on whole activations outside.
///
/// Inside, the generator is seeded from its own state and the rank. So there is
/// no further state to be kept: a checkpoint of the default generator covers
/// it, and so does the recomputation of a checkpointed block. In a group of one
/// nothing happens.
///
/// Does not block or synchronise. Not collective.
class TensorRandomScope {
 public:
  TensorRandomScope(const Communicator& group, at::Device device);

 private:
  GeneratorScope generator_;
};

} // namespace tessera
