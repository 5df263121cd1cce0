// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lazy recorder records what a module's constructor does to tensors that
// have no memory.
//
// [Note: recording mode] The dispatch key TESTING_ONLY_GenericMode has priority
// over all others except the page key. While a thread includes it, every
// operator that the thread calls is dispatched to one boxed fallback. Like the
// page key, it is meant for LibTorch's own tests and otherwise unused; its
// registration is process-wide, so it lives in this file only.

#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/lazy_value.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// The recording of one thread.
struct LazyRecording {
  LazyOptions options;
  std::shared_ptr<uint64_t> seed;
  /// number of the next operator that draws random values
  uint64_t next_random = 0;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
};

/// Returns the recording of this thread, or null.
LazyRecording*& lazy_recording();

/// While it is alive, operators that this thread calls are recorded.
struct RecordedOperators {
  c10::impl::IncludeDispatchKeyGuard guard{
      c10::DispatchKeySet{c10::DispatchKey::TESTING_ONLY_GenericMode}};
};

/// While it is alive, operators that this thread calls run instead of being
/// recorded.
struct NotRecorded {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet{c10::DispatchKey::TESTING_ONLY_GenericMode}};
};

/// Registers the fallback. Idempotent, thread-safe.
/// @throws tessera::Error when another library uses the key.
void ensure_recording_mode_registered();

/// Returns what computes the values of the storage or tensor; null if it is not
/// lazy.
LazyFill* lazy_fill(const c10::StorageImpl& storage);
LazyFill* lazy_fill(const at::Tensor& tensor);

} // namespace tessera::sharding
