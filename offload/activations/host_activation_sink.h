// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostActivationSink` keeps saved tensors on the device up to a budget, and
// the rest on the host.

#include "tessera/offload/activations/activation_copies.h"
#include "tessera/offload/activations/activation_statistics.h"
#include "tessera/offload/activations/saved_by_producer.h"
#include "tessera/offload/activations/saved_storage.h"
#include "tessera/runtime/memory/activation_sink.h"

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tessera::offload {

struct HostActivationSinkOptions {
  /// Tensors on other devices are left alone. On the CPU, host memory is other
  /// memory of the same kind: everything works, but saves no memory.
  c10::Device device = at::kCPU;
  /// The most bytes of saved tensors on the device; nothing: no limit.
  std::optional<int64_t> device_bytes;
  /// Whether every tensor is copied when it is saved, not when the budget is
  /// reached.
  bool copy_at_once = false;
  /// Smaller storages stay on the device, but count.
  int64_t min_tensor_bytes = 64 << 10;
  /// The most bytes that are copied back ahead of their use.
  int64_t prefetch_bytes = 64 << 20;
  /// Limit of host memory; nothing: what the host has. What does not fit stays
  /// on the device.
  std::optional<int64_t> host_bytes;
  /// True for storages that are left alone: parameters, buffers. May be empty.
  runtime::StorageTest passes;
};

/// [Note: activation budget] Backward first needs what was saved last: autograd
/// runs nodes in the reverse order of their creation. So when saved bytes
/// exceed the budget, the oldest leave the device, and in backward the next
/// older ones are copied back ahead of their use, as far as the budget and
/// prefetch_bytes allow. What must leave in one round (from the first tensor
/// saved to the last one released) is copied as soon as it is saved in the next
/// round, while there is time.
///
/// The unit is the storage: views share one copy, and a storage that several
/// operators save is copied once. It is counted as long as it is held here; the
/// operators of the model may hold it longer. Two things can exceed the budget:
/// storages below min_tensor_bytes together, and in backward what a single
/// operator needs at once.
///
/// If a tensor is written to through `.data()`, which autograd does not see,
/// after it was saved once and before it is saved again, both may keep the
/// older values.
class HostActivationSink
    : public runtime::ActivationSink,
      public std::enable_shared_from_this<HostActivationSink> {
 public:
  explicit HostActivationSink(HostActivationSinkOptions options);

  std::unique_ptr<runtime::SavedActivation> take(
      const at::Tensor& tensor,
      bool to_host) override;

  ActivationStatistics statistics() const;

  /// Sets the peaks to the current values.
  void reset_peaks();

  /// Tensors saved since none was last alive, by producer, largest first.
  std::vector<SavedByProducer> saved_by_producer() const;

 private:
  class Saved;
  /// Freed after the lock is released: a storage's deleter may do anything.
  using Freed = std::vector<c10::Storage>;

  bool governs(const at::Tensor& tensor) const;
  SavedStorage* find(const at::Tensor& tensor);
  SavedStorage& add(const at::Tensor& tensor);
  void begin_round();
  void settle(SavedStorage& saved, bool to_host, Freed& freed);

  bool copy_out(SavedStorage& saved);
  bool leave(SavedStorage& saved, Freed& freed);
  bool leave_in_forward(SavedStorage& saved, Freed& freed);
  void bring(SavedStorage& saved);
  void make_room_before(const SavedStorage& needed, uint64_t at, Freed& freed);
  void prefetch(uint64_t before);
  bool is_elsewhere(const SavedStorage& saved) const;
  c10::Storage use(SavedStorage& saved, uint64_t number);
  void release(SavedStorage& saved, uint64_t number);
  void erase(SavedStorage& saved, Freed& freed);

  void hold(SavedStorage& saved, c10::Storage storage);
  c10::Storage release(SavedStorage& saved);
  bool fits(int64_t bytes) const;
  void index(SavedStorage& saved);
  void unindex(const SavedStorage& saved);

  HostActivationSinkOptions options_;
  c10::Storage nothing_; ///< storage of a shape without data
  mutable std::mutex mutex_;
  ActivationCopies copies_;
  ActivationStatistics statistics_;
  SavedByProducerCounts producers_;
  std::list<SavedStorage> storages_;
  std::unordered_map<const c10::StorageImpl*, SavedStorage*> by_storage_;
  /// Movable storages by needed_at(): on the device, and not on the device.
  std::map<uint64_t, SavedStorage*> resident_;
  std::map<uint64_t, SavedStorage*> away_;
  SavedStorage* on_its_way_ = nullptr; ///< the last one that was asked to leave
  uint64_t last_number_ = 0;
  int64_t ahead_bytes_ = 0;
  /// Bytes that left while tensors were saved: in this round and in the
  /// previous one.
  int64_t left_bytes_ = 0;
  int64_t planned_bytes_ = 0;
  int64_t copied_by_plan_ = 0;
};

} // namespace tessera::offload
