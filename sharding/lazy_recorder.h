// SPDX-License-Identifier: Apache-2.0
#pragma once
// Notes what a module's constructor does to tensors that have no memory.
//
// [Note: recording mode] The dispatch key TESTING_ONLY_GenericMode lies above
// all others but the page key's. While a thread includes it, every operator
// that the thread calls comes to one boxed fallback. The key is meant for
// LibTorch's own tests, as the page key is, and free otherwise; its
// registration is process-wide, which is why this file is.

#include "tessera/sharding/lazy.h"
#include "tessera/sharding/lazy_value.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// What is recorded on one thread.
struct LazyRecording {
  LazyOptions options;
  std::shared_ptr<uint64_t> seed;
  uint64_t next_random = 0; ///< number of the next operator that draws
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
};

/// The recording of this thread, or null.
LazyRecording*& lazy_recording();

/// While it lives, operators of this thread are recorded.
struct RecordedOperators {
  c10::impl::IncludeDispatchKeyGuard guard{
      c10::DispatchKeySet{c10::DispatchKey::TESTING_ONLY_GenericMode}};
};

/// While it lives, they are run instead.
struct NotRecorded {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet{c10::DispatchKey::TESTING_ONLY_GenericMode}};
};

/// Registers the fallback. Idempotent, thread-safe.
/// @throws tessera::Error when another library holds the key.
void ensure_recording_mode_registered();

/// What makes the storage's or the tensor's values; null where that is not a
/// recording.
LazyFill* lazy_fill(const c10::StorageImpl& storage);
LazyFill* lazy_fill(const at::Tensor& tensor);

} // namespace tessera
