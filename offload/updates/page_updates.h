// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageUpdates` runs the updates of whole pages, one after the other: at once,
// or on a thread concurrently with forward and backward.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/updates/speculative_state.h"
#include "tessera/offload/updates/state_access.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/offload/updates/update_queue.h"
#include "tessera/offload/updates/update_statistics.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tessera::offload {

/// [Note: updates beside backward] Updates run on one thread in the order in
/// which they are submitted, and each uses all threads of the update pool.
/// While one runs, what the next one needs is fetched: the state and gradient
/// of the next in the queue or, if the queue is empty, the state of the one
/// that came next in the last step.
/// Before a main thread uses a page again, it calls wait() for that page.
///
/// [Note: speculation] An update can be computed in a second copy of the state
/// (SpeculativeState) before it is known whether it is needed. update() of the
/// same page takes it if it would do the same: the same elements at the same
/// steps, with the same rates and the same factor for gradients. Otherwise it
/// is dropped, and the update is computed again from the old state. So results
/// do not depend on what was speculated.
///
/// Without overlap everything happens in the calling thread, at once.
class PageUpdates {
 public:
  /// @param pages the number of pages, which are given by their numbers.
  /// @param device of their parameters.
  /// @param streamed must outlive this object; nothing else may use it, or the
  ///   staging buffers, between the first call and wait_all().
  PageUpdates(
      size_t pages,
      c10::Device device,
      StreamedUpdate& streamed,
      bool overlaps);
  ~PageUpdates();

  bool overlaps() const {
    return queue_ != nullptr;
  }
  /// Enables speculate() for page `g`. Call it before allocate().
  void add_speculation(size_t g, StateAccess& state);
  bool speculates(size_t g) const {
    return copies_[g] != nullptr;
  }
  void add_bytes(TierBytes& bytes) const;
  /// Allocates what speculate() needs for page `g`.
  /// @param store of the page's state; null: it is in the memory of the CPU.
  void allocate(size_t g, HostMemory& memory, runtime::ShardStore* store);
  const UpdateStatistics& statistics() const {
    return statistics_;
  }

  /// Submits work on the gradients of page `g` for a norm. With overlap only.
  void submit_sums(size_t g, std::function<void()> work);
  /// Blocks until all of that work has ended.
  void wait_for_sums();
  void update(size_t g, std::vector<StateUpdate> updates);
  /// Submits work on page `g` that follows its updates; its state is not
  /// fetched ahead. With overlap only.
  void submit(size_t g, std::function<void()> work);
  void speculate(size_t g, StateUpdate update);
  /// Forgets the speculated update of page `g`, which may still be running.
  void drop_speculation(size_t g) {
    speculated_[g].reset();
  }

  /// Begins to fetch the state that the first update of a step needs.
  void begin_step();
  /// Marks the end of a step: what follows belongs to another step.
  void end_step();

  /// Blocks until the work on page `g` has ended.
  /// @return the marks that streams must wait for before they use its tensors.
  /// @throws what any work has thrown.
  runtime::StreamMarks wait(size_t g);
  /// Whether an update of page `g` was submitted that no function here has
  /// waited for. Does not block.
  bool is_updating(size_t g) const {
    return updating_[g];
  }
  /// As above for all pages; also releases what was fetched ahead, so that the
  /// state may be accessed. The current stream of the parameters' device waits.
  void wait_all();

 private:
  void push(
      size_t g,
      std::shared_ptr<StateUpdate> update,
      std::function<void()> work);
  void run(const StateUpdate& update);
  void note(const StateUpdate& update);
  void fetch_next(const StateUpdate& update);
  /// Makes `state` the prefetched one. @return whether it is.
  bool begin_prefetch(StateAccess& state);
  void drop_prefetched();

  c10::Device device_;
  StreamedUpdate& streamed_;
  /// Per page, or null.
  std::vector<std::unique_ptr<SpeculativeState>> copies_;
  /// Per page, the update that its copy holds or will hold.
  std::vector<std::shared_ptr<StateUpdate>> speculated_;
  std::vector<UpdateQueue::Ticket> tickets_; ///< per page, of its last work
  std::vector<bool> updating_; ///< per page; see is_updating()
  UpdateQueue::Ticket last_sums_ = 0;
  UpdateStatistics statistics_;
  bool begun_ = false; ///< in the step in progress

  std::mutex mutex_;
  std::deque<std::shared_ptr<StateUpdate>> waiting_; ///< guarded by mutex_

  // Used by the queue's thread:
  std::unordered_map<const StateAccess*, StateAccess*> successors_;
  StateAccess* first_ = nullptr; ///< of a step
  StateAccess* last_ = nullptr; ///< begun in the step in progress
  StateAccess* prefetched_ = nullptr;
  /// Per page, the marks after its last update if it was streamed. Other
  /// threads read them after that update has ended.
  std::vector<runtime::StreamMarks> after_streaming_;

  std::unique_ptr<UpdateQueue> queue_; ///< last: its work uses the others
};

} // namespace tessera::offload
