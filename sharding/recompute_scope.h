// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where this thread is with respect to checkpointed blocks. The pager asks: a
// block's first forward runs without gradients and still belongs to a training
// step, and a backward inside a backward does not end the step's backward.

#include <functional>

namespace tessera {

/// While it lives, this thread runs the first forward of a checkpointed block.
class CheckpointedForward {
 public:
  CheckpointedForward();
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;
};

/// True inside of any CheckpointedForward of this thread.
bool in_checkpointed_forward();

/// While it lives, this thread recomputes a block and runs the backward of
/// what it has recomputed. Made in the backward of the autograd graph that the
/// block is part of.
class RecomputeScope {
 public:
  RecomputeScope();
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  /// Ends the scope; what waits for the end of backward now waits for that of
  /// the graph around. Without it, after an exception, it is forgotten.
  void finish();

 private:
  bool finished_ = false;
};

/// Autograd's number of the backward that the user has started, also inside of
/// a recomputation; -1 outside of backward.
int current_backward();

/// Calls `callback` when the backward that the user has started ends. Called
/// in a backward; recomputed graphs do not count. A backward that a user's own
/// autograd function starts does: LibTorch does not show it.
void call_at_backward_end(std::function<void()> callback);

} // namespace tessera
