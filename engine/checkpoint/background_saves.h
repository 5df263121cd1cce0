// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BackgroundSaves` writes the checkpoints of an engine on a thread of its own,
// from a copy of the state in host memory.

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/pending_save.h"
#include "tessera/offload/stores/host_memory.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>

namespace tessera::engine {

class BackgroundSaves {
 public:
  /// Collective. @param device of the parameters.
  /// @param ledger must outlive this object, as must what `watch` refers to.
  BackgroundSaves(
      World& world,
      c10::Device device,
      MemoryLedger& ledger,
      WaitCheck watch);

  /// Blocks until the last save is done; while an exception propagates, gives
  /// it up: the ranks that wait for this one would wait for ever.
  ~BackgroundSaves();

  BackgroundSaves(const BackgroundSaves&) = delete;
  BackgroundSaves& operator=(const BackgroundSaves&) = delete;

  /// Blocks until the save before is done, and while the state is copied.
  /// Collective.
  PendingSave begin(
      const CheckpointSubject& subject,
      const std::filesystem::path& folder,
      int keep_last);

  /// Blocks until the last save is done, or has failed.
  void finish() const;

 private:
  offload::HostMemory memory_;
  WaitCheck watch_;
  std::unique_ptr<Communicator> ranks_; ///< for the thread alone
  at::Tensor snapshot_; ///< kept from save to save
  std::atomic<bool> gives_up_ = false;
  std::shared_future<std::filesystem::path> last_;
};

} // namespace tessera::engine
