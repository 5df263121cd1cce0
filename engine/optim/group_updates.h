// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GroupUpdates` runs the updates of whole groups, one after the other: at
// once, or on a thread concurrently with forward and backward.

#include "tessera/engine/optim/state_shadow.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_queue.h"
#include "tessera/engine/optim/update_statistics.h"

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
/// While one runs, the state of the next one is fetched: of the next in the
/// queue or, if the queue is empty, of the one that came next in the last step.
/// Before a main thread uses a group again, it calls wait() for that group.
///
/// [Note: speculation] An update can be computed in a second copy of the state
/// (StateShadow) before it is known whether it is needed. update() of the same
/// group takes it if it would do the same: the same elements at the same steps,
/// with the same rates and the same factor for gradients. Otherwise it is
/// dropped, and the update is computed again from the old state. So results do
/// not depend on what was speculated.
///
/// Without overlap everything happens in the calling thread, at once.
class GroupUpdates {
 public:
  /// @param context must outlive this object; nothing else may use its stage
  ///   between the first call and wait_all().
  GroupUpdates(UpdateContext& context, bool overlaps);
  ~GroupUpdates();

  bool overlaps() const {
    return queue_ != nullptr;
  }
  /// Enables speculate() for `part`. Call it before allocate().
  void add_shadow(UpdateMethod& method, ShardPart& part);
  bool has_shadow(size_t g) const {
    return shadows_[g] != nullptr;
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
  void update(size_t g, std::vector<PartUpdate> updates);
  void speculate(size_t g, PartUpdate update);
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
  /// As above for all groups; also releases what was fetched ahead, so that the
  /// state may be accessed. The current stream of the parameters' device waits.
  void wait_all();

 private:
  void submit(size_t g, std::function<void()> work);
  void push(
      size_t g,
      std::shared_ptr<PartUpdate> update,
      std::function<void()> work);
  PartTensors open(const PartUpdate& update);
  void run(const PartUpdate& update);
  void note(const PartUpdate& update);
  void fetch_next(const PartUpdate& update);
  void fetch_ahead(UpdateMethod& method, ShardPart& part);
  void drop_prefetched();

  struct Place {
    UpdateMethod* method = nullptr;
    ShardPart* part = nullptr;
  };

  UpdateContext& context_;
  c10::Device device_;
  std::vector<std::unique_ptr<StateShadow>> shadows_; ///< per group, or null
  /// Per group, the update that its shadow holds or will hold.
  std::vector<std::shared_ptr<PartUpdate>> speculated_;
  std::vector<UpdateQueue::Ticket> tickets_; ///< per group, of its last work
  UpdateQueue::Ticket last_sums_ = 0;
  UpdateStatistics statistics_;
  bool begun_ = false; ///< in the step in progress

  std::mutex mutex_;
  std::deque<std::shared_ptr<PartUpdate>> waiting_; ///< guarded by mutex_

  // Used by the queue's thread:
  std::unordered_map<const ShardPart*, Place> successors_;
  Place first_; ///< of a step
  Place last_; ///< begun in the step in progress
  Place prefetched_;
  /// Per group, the marks after its last update if it was streamed. Other
  /// threads read them after that update has ended.
  std::vector<runtime::StreamMarks> streamed_;

  std::unique_ptr<UpdateQueue> queue_; ///< last: its work uses the others
};

} // namespace tessera::engine
