// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GroupUpdates` runs the updates of whole groups, one after the other: at
// once, or on a thread concurrently with forward and backward.

#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_statistics.h"
#include "tessera/offload/updates/speculative_state.h"
#include "tessera/offload/updates/state_access.h"
#include "tessera/offload/updates/update_queue.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tessera::engine {

/// [Note: updates beside backward] Updates run on one thread in the order in
/// which they are submitted, and each uses all threads of the update pool.
/// While one runs, what the next one needs is fetched: the state and gradient
/// of the next in the queue or, if the queue is empty, the state of the one
/// that came next in the last step.
/// Before a main thread uses a group again, it calls wait() for that group.
///
/// [Note: speculation] An update can be computed in a second copy of the state
/// (SpeculativeState) before it is known whether it is needed. update() of the
/// same group takes it if it would do the same: the same elements at the same
/// steps, with the same rates and the same factor for gradients. Otherwise it
/// is dropped, and the update is computed again from the old state. So results
/// do not depend on what was speculated.
///
/// Without overlap everything happens in the calling thread, at once.
class GroupUpdates {
 public:
  /// @param context must outlive this object; nothing else may use its staging
  ///   buffers between the first call and wait_all().
  GroupUpdates(UpdateContext& context, bool overlaps);
  ~GroupUpdates();

  bool overlaps() const {
    return queue_ != nullptr;
  }
  /// Enables speculate() for group `g`. Call it before allocate().
  void add_speculation(size_t g, offload::StateAccess& state);
  bool speculates(size_t g) const {
    return copies_[g] != nullptr;
  }
  void add_bytes(TierBytes& bytes) const;
  void allocate();
  const UpdateStatistics& statistics() const {
    return statistics_;
  }

  /// Submits work on the gradients of group `g` for a norm. With overlap only.
  void submit_sums(size_t g, std::function<void()> work);
  /// Blocks until all of that work has ended.
  void wait_for_sums();
  void update(size_t g, std::vector<offload::StateUpdate> updates);
  /// Submits work on group `g` that follows its updates; its state is not
  /// fetched ahead. With overlap only.
  void submit(size_t g, std::function<void()> work);
  void speculate(size_t g, offload::StateUpdate update);
  /// Forgets the speculated update of group `g`, which may still be running.
  void drop_speculation(size_t g) {
    speculated_[g].reset();
  }

  /// Begins to fetch the state that the first update of a step needs.
  void begin_step();
  /// Marks the end of a step: what follows belongs to another step.
  void end_step();

  /// Blocks until the work on group `g` has ended.
  /// @return the marks that streams must wait for before they use its tensors.
  /// @throws what any work has thrown.
  runtime::StreamMarks wait(size_t g);
  /// Whether an update of group `g` was submitted that no function here has
  /// waited for. Does not block.
  bool is_updating(size_t g) const {
    return updating_[g];
  }
  /// As above for all groups; also releases what was fetched ahead, so that the
  /// state may be accessed. The current stream of the parameters' device waits.
  void wait_all();

 private:
  void push(
      size_t g,
      std::shared_ptr<offload::StateUpdate> update,
      std::function<void()> work);
  offload::ShardTensors open(const offload::StateUpdate& update);
  void run(const offload::StateUpdate& update);
  void note(const offload::StateUpdate& update);
  void fetch_next(const offload::StateUpdate& update);
  /// Makes `state` the prefetched one. @return whether it is.
  bool begin_prefetch(offload::StateAccess& state);
  void drop_prefetched();

  UpdateContext& context_;
  c10::Device device_;
  /// Per group, or null.
  std::vector<std::unique_ptr<offload::SpeculativeState>> copies_;
  /// Per group, the update that its copy holds or will hold.
  std::vector<std::shared_ptr<offload::StateUpdate>> speculated_;
  std::vector<offload::UpdateQueue::Ticket>
      tickets_; ///< per group, of its last work
  std::vector<bool> updating_; ///< per group; see is_updating()
  offload::UpdateQueue::Ticket last_sums_ = 0;
  UpdateStatistics statistics_;
  bool begun_ = false; ///< in the step in progress

  std::mutex mutex_;
  std::deque<std::shared_ptr<offload::StateUpdate>>
      waiting_; ///< guarded by mutex_

  // Used by the queue's thread:
  std::unordered_map<const offload::StateAccess*, offload::StateAccess*>
      successors_;
  offload::StateAccess* first_ = nullptr; ///< of a step
  offload::StateAccess* last_ = nullptr; ///< begun in the step in progress
  offload::StateAccess* prefetched_ = nullptr;
  /// Per group, the marks after its last update if it was streamed. Other
  /// threads read them after that update has ended.
  std::vector<runtime::StreamMarks> streamed_;

  std::unique_ptr<offload::UpdateQueue>
      queue_; ///< last: its work uses the others
};

} // namespace tessera::engine
