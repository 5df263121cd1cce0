// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TensorRandomScope` gives each rank random numbers of its own inside
// partitioned layers.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/random/generator_scope.h"

namespace tessera::sharding {

/// While it is alive, LibTorch's default generator of `device` yields different
/// numbers on every rank of the group; before and afterwards it yields the same
/// numbers on all of them if they were seeded alike. Use it around dropout on
/// features, heads or sequence slices, but not around dropout on whole
/// activations.
///
/// Inside, the generator is seeded from its own state and the rank. So there is
/// no additional state to save: a checkpoint of the default generator covers
/// it, and so does the recomputation of a checkpointed block. In a group of one
/// rank it does nothing.
///
/// Does not block or synchronize. Not collective.
class TensorRandomScope {
 public:
  TensorRandomScope(const Communicator& group, at::Device device);

 private:
  runtime::GeneratorScope generator_;
};

} // namespace tessera::sharding
