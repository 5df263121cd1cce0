// SPDX-License-Identifier: Apache-2.0
#pragma once
// Updates of whole groups, one after the other: at once, or on a thread beside
// forward and backward.

#include "tessera/engine/optim/update_statistics.h"
#include "tessera/engine/optim/state_shadow.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_queue.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tessera {

/// [Note: updates beside backward] Updates run on one thread in the order in
/// which they are submitted, and each on all threads of the update pool. While
/// one runs, the state of the next one is on its way: of the one that waits, or
/// else of the one that came next in the last step. What a main thread may
/// touch of a group again it asks wait() for.
///
/// [Note: speculation] An update can be made before it is known whether it is
/// wanted, in a second copy of the state (StateShadow). update() of the same
/// group takes it if it would do the same: the same elements at the same steps,
/// with the same rates and the same factor for gradients. Otherwise it is
/// dropped, and the update is made anew from the old state. So nothing depends
/// on what was speculated.
///
/// Without overlap everything happens in the calling thread, at once.
class GroupUpdates {
 public:
  /// @param context outlives this object; the stage is used by no one else
  ///   between the first call and wait_all().
  GroupUpdates(UpdateContext& context, bool overlaps);
  ~GroupUpdates();

  bool overlaps() const {
    return queue_ != nullptr;
  }
  /// Makes speculate() possible for `part`. Before allocate().
  void add_shadow(UpdateMethod& method, ShardPart& part);
  bool has_shadow(size_t g) const {
    return shadows_[g] != nullptr;
  }
  void add_bytes(TierBytes& bytes) const;
  void allocate();
  const UpdateStatistics& statistics() const {
    return statistics_;
  }

  /// Work on the gradients of group `g` for a norm. With overlap only.
  void submit_sums(size_t g, std::function<void()> work);
  /// Blocks until all of that has ended.
  void wait_for_sums();
  void update(size_t g, std::vector<PartUpdate> updates);
  void speculate(size_t g, PartUpdate update);
  /// Forgets the speculated update of group `g`; it may still be under way.
  void drop_speculation(size_t g) {
    speculated_[g].reset();
  }

  /// The state that the first update of a step needs begins to come.
  void begin_step();
  /// What comes next belongs to another step.
  void end_step();

  /// Blocks until the work on group `g` has ended. @return what streams that
  /// touch its tensors wait for. @throws what some work has thrown.
  StreamMarks wait(size_t g);
  /// As above for all groups, and gives back what was fetched ahead: the state
  /// may be touched. The current stream of the parameters' device comes after.
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
  bool begun_ = false; ///< of the step in progress

  std::mutex mutex_;
  std::deque<std::shared_ptr<PartUpdate>> waiting_; ///< guarded by mutex_

  // Of the queue's thread.
  std::unordered_map<const ShardPart*, Place> successors_;
  Place first_; ///< of a step
  Place last_; ///< that was begun; of the step in progress
  Place prefetched_;
  /// Per group, behind its last update if it was streamed. Read by others once
  /// that has ended.
  std::vector<StreamMarks> streamed_;

  std::unique_ptr<UpdateQueue> queue_; ///< last: its work uses all of it
};

} // namespace tessera
