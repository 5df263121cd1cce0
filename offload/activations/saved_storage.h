// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SavedStorage` is one storage that autograd has saved, on the device, on the
// host, or on both.

#include "tessera/offload/activations/host_activation_pool.h"
#include "tessera/offload/activations/saved_by_producer.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <list>
#include <vector>

namespace tessera::offload {

struct SavedStorage {
  explicit SavedStorage(const c10::Storage& storage)
      : bytes(static_cast<int64_t>(storage.nbytes())),
        original(storage.unsafeGetStorageImpl()),
        keeps_address(storage.getWeakStorageImpl()) {}

  int64_t bytes;
  /// The storage that was saved. It may be freed, but its address is not
  /// reused.
  const c10::StorageImpl* original;
  c10::weak_intrusive_ptr<c10::StorageImpl> keeps_address;
  /// The original or the copy that was brought back; none while it is on the
  /// host only.
  c10::Storage on_device;
  bool brought_back = false; ///< on_device is not the original
  HostBlock on_host; ///< defined once it has been copied
  /// The last copy from or to on_device.
  runtime::StreamMarks copying;
  /// The streams on which on_device was made and saved; none on the CPU.
  runtime::StreamSet streams;

  /// Numbers of the tensors that were saved and not released; backward needs
  /// the last one first.
  std::vector<uint64_t> savers;
  /// The version counter of the tensor saved last, and its value when the copy
  /// was made.
  c10::VariableVersion version;
  uint32_t copied_version = 0;

  bool movable = true; ///< large enough to leave
  bool ahead = false; ///< prefetched and not used yet
  SavedByProducerCounts::Count* producer = nullptr;
  std::list<SavedStorage>::iterator self;

  const c10::StorageImpl* device_impl() const {
    return on_device.unsafeGetStorageImpl();
  }
  uint64_t needed_at() const {
    return savers.back();
  }
};

} // namespace tessera::offload
