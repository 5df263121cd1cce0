// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointedForward` and `RecomputeScope` mark, for the pager, where this
// thread is in checkpointed blocks: a block's first forward runs without
// gradients but belongs to a training step, and a nested backward does not end
// the step's backward.

#include <functional>

namespace tessera::sharding {

/// While it is alive, this thread runs the first forward of a checkpointed
/// block.
class CheckpointedForward {
 public:
  CheckpointedForward();
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;
};

/// Returns whether this thread is inside a CheckpointedForward.
bool in_checkpointed_forward();

/// While it is alive, this thread recomputes a block and runs the nested
/// backward. Created in the backward of the autograd graph that contains the
/// block.
class RecomputeScope {
 public:
  RecomputeScope();
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  /// Ends the scope; callbacks for the end of backward are passed to the
  /// enclosing graph. Without this call, after an exception, they are dropped.
  void finish();

 private:
  bool finished_ = false;
};

/// Returns whether autograd runs a backward on this thread.
bool in_backward();

/// Returns whether this thread is inside a RecomputeScope.
bool in_recomputation();

/// Returns autograd's number of the backward that the user has started, also
/// inside a recomputation; -1 outside of backward.
int current_backward();

/// Calls `callback` when the backward that the user has started ends. Must be
/// called in a backward. Recomputed graphs do not count as backwards; one that
/// a user's own autograd function starts does, since LibTorch does not expose
/// the difference.
void call_at_backward_end(std::function<void()> callback);

} // namespace tessera::sharding
