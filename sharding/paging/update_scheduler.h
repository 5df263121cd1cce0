// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateScheduler` is told by a pager when gradients are final and before
// shards are used, so that updates can run beside forward and backward.

#include "tessera/runtime/streams/stream_marks.h"

namespace tessera::sharding {

struct Page;

/// All functions are called on the thread of forward and backward.
class UpdateScheduler {
 public:
  virtual ~UpdateScheduler() = default;

  /// Called when nothing will read the weights of a page or add to its
  /// gradients before the step, provided that this step proceeds as planned.
  /// With PagerOptions::update_in_backward its weights may be written from here
  /// on; it is then called at most once per step for a page, and what it did
  /// not apply is left to the step. The current stream is ordered after the
  /// reduction.
  /// @return whether the gradients are read after this call.
  virtual bool on_final_gradients(Page& page) = 0;

  /// Called before the current or past gradients of a page are changed or
  /// freed. Blocks while they are read.
  /// @return marks that streams that write to their memory must wait for.
  virtual runtime::StreamMarks before_gradients_change(const Page& page) = 0;

  /// Called before the shard of a page is read or written. Blocks while it
  /// is in use.
  /// @return marks that streams that access it must wait for.
  virtual runtime::StreamMarks before_shard_use(const Page& page) = 0;

  /// Whether the weights of a page may be being written to: an update was
  /// begun that neither of the two functions above has waited for. Does not
  /// block.
  virtual bool is_updating(const Page& page) const = 0;
};

} // namespace tessera::sharding
