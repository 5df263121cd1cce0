// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who works on shards and gradients beside forward and backward, as the pager
// knows him.

#include "tessera/runtime/memory/stream_marks.h"

#include <cstddef>

namespace tessera {

/// All functions are called on the thread of forward and backward.
class ShardUser {
 public:
  virtual ~ShardUser() = default;

  /// Nothing reads the weights of group `g` or adds to its gradients any more
  /// before the step, if it goes on as the one that was planned from. With
  /// PagerOptions::update_in_backward its weights may be written from here on;
  /// it is called at most once a step for a group then, and what it did not
  /// apply is left to the step. The current stream comes after the reduction.
  /// @return whether the gradients are read after this call.
  virtual bool on_final_gradients(size_t g) = 0;

  /// The gradients of group `g`, as they are or were, will be changed or freed.
  /// Blocks while they are read. @return what streams that write to their
  /// memory wait for.
  virtual StreamMarks before_gradients_change(size_t g) = 0;

  /// The shard of group `g` will be read or written. Blocks while it is written
  /// or read. @return what streams that touch it wait for.
  virtual StreamMarks before_shard_use(size_t g) = 0;
};

} // namespace tessera
