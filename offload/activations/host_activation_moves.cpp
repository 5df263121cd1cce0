// SPDX-License-Identifier: Apache-2.0
// Part of HostActivationSink: storages that leave the device, return and end.
#include "tessera/offload/activations/host_activation_sink.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/dry_run/dry_run.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace tessera::offload {

bool HostActivationSink::fits(int64_t bytes) const {
  return !options_.device_bytes ||
         statistics_.live_device_bytes + bytes <= *options_.device_bytes;
}

void HostActivationSink::make_room_before(
    const SavedStorage& needed,
    uint64_t at,
    Freed& freed) {
  // Storages that operators hold themselves would stay on the device.
  const auto may_leave = [](const auto& item) {
    return item.second->on_device.use_count() == 1;
  };
  while (!fits(needed.bytes)) {
    // First those saved later than the one that backward is at: they have been
    // used, or belong to another graph.
    auto next =
        std::find_if(resident_.upper_bound(at), resident_.end(), may_leave);
    if (next == resident_.end()) {
      next = std::find_if(resident_.begin(), resident_.end(), may_leave);
    }
    if (next == resident_.end() || !leave(*next->second, freed)) {
      return;
    }
  }
}

bool HostActivationSink::copy_out(SavedStorage& saved) {
  if (saved.on_host.defined()) {
    return true;
  }
  saved.on_host =
      copies_.copy_out(saved.on_device, saved.streams, saved.copying);
  if (!saved.on_host.defined()) {
    if (auto* const run = runtime::DryRun::current()) {
      run->assume(
          "offload: host memory has no room for all activations; what does not fit stays on the device");
    } else if (statistics_.bytes_refused == 0) {
      log_warning(
          "offload: host memory has no room for {} bytes of activations in addition to {}; what does not fit stays on the device and exceeds its budget. Provide more host memory or use a smaller batch.",
          saved.bytes,
          statistics_.live_host_bytes);
    }
    statistics_.bytes_refused += saved.bytes;
    return false;
  }
  saved.copied_version = saved.version.current_version();
  statistics_.bytes_to_host += saved.bytes;
  statistics_.live_host_bytes += saved.bytes;
  statistics_.peak_host_bytes =
      std::max(statistics_.peak_host_bytes, statistics_.live_host_bytes);
  return true;
}

bool HostActivationSink::leave(SavedStorage& saved, Freed& freed) {
  if (!copy_out(saved)) {
    return false;
  }
  unindex(saved);
  freed.push_back(release(saved));
  index(saved);
  return true;
}

void HostActivationSink::bring(SavedStorage& saved) {
  auto storage = copies_.copy_in(saved.on_host, saved.copying);
  unindex(saved);
  saved.brought_back = true;
  saved.streams.clear();
  if (const auto stream = runtime::current_stream(options_.device)) {
    saved.streams.insert(*stream);
  }
  hold(saved, std::move(storage));
  index(saved);
  statistics_.bytes_to_device += saved.bytes;
  statistics_.peak_device_bytes =
      std::max(statistics_.peak_device_bytes, statistics_.live_device_bytes);
}

bool HostActivationSink::is_elsewhere(const SavedStorage& saved) const {
  const auto stream = runtime::current_stream(options_.device);
  return stream && saved.brought_back && !saved.streams.contains(*stream);
}

c10::Storage HostActivationSink::use(SavedStorage& saved, uint64_t number) {
  {
    // What leaves is freed before something else takes its place.
    Freed freed;
    const std::lock_guard lock(mutex_);
    if (saved.on_device && is_elsewhere(saved)) {
      // Memory of another stream: freeing it here would not order the two
      // streams.
      leave(saved, freed);
    }
    if (!saved.on_device) {
      make_room_before(saved, number, freed);
    }
  }
  const std::lock_guard lock(mutex_);
  if (!saved.on_device) {
    ++statistics_.stalls;
    bring(saved);
  } else if (saved.ahead) {
    saved.ahead = false;
    ahead_bytes_ -= saved.bytes;
  }
  if (saved.brought_back) {
    saved.copying.block_current(options_.device);
  }
  c10::Storage used = saved.on_device;
  prefetch(number);
  return used;
}

void HostActivationSink::prefetch(uint64_t before) {
  for (;;) {
    auto next = away_.lower_bound(before);
    if (next == away_.begin()) {
      return;
    }
    SavedStorage& saved = *std::prev(next)->second;
    if (ahead_bytes_ + saved.bytes > options_.prefetch_bytes ||
        !fits(saved.bytes)) {
      return;
    }
    try {
      bring(saved);
    } catch (const c10::Error&) {
      return; // no memory: not an error before it is needed
    }
    saved.ahead = true;
    ahead_bytes_ += saved.bytes;
    statistics_.bytes_prefetched += saved.bytes;
  }
}

void HostActivationSink::hold(SavedStorage& saved, c10::Storage storage) {
  const c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  saved.on_device = std::move(storage);
  by_storage_[impl] = &saved;
  statistics_.live_device_bytes += saved.bytes;
}

c10::Storage HostActivationSink::release(SavedStorage& saved) {
  saved.streams.block(saved.copying);
  if (saved.on_device && !saved.brought_back) {
    // Its memory returns to the stream that allocated it, which may be none of
    // those that saved it. For that stream itself this does nothing.
    const c10::impl::VirtualGuardImpl guard(options_.device.type());
    for (const c10::Stream& stream : saved.streams.streams()) {
      guard.recordDataPtrOnStream(saved.on_device.data_ptr(), stream);
    }
  }
  statistics_.live_device_bytes -= saved.bytes;
  if (std::exchange(saved.ahead, false)) {
    ahead_bytes_ -= saved.bytes;
  }
  if (std::exchange(saved.brought_back, false)) {
    by_storage_.erase(saved.device_impl());
  }
  return std::exchange(saved.on_device, {});
}

void HostActivationSink::index(SavedStorage& saved) {
  if (saved.movable) {
    (saved.on_device ? resident_ : away_).emplace(saved.needed_at(), &saved);
  }
}

void HostActivationSink::unindex(const SavedStorage& saved) {
  if (saved.movable) {
    (saved.on_device ? resident_ : away_).erase(saved.needed_at());
  }
}

void HostActivationSink::release(SavedStorage& saved, uint64_t number) {
  Freed freed;
  const std::lock_guard lock(mutex_);
  unindex(saved);
  std::erase(saved.savers, number);
  if (saved.savers.empty()) {
    erase(saved, freed);
  } else {
    index(saved);
  }
}

void HostActivationSink::erase(SavedStorage& saved, Freed& freed) {
  if (saved.on_device) {
    freed.push_back(release(saved));
  }
  const auto known = by_storage_.find(saved.original);
  if (known != by_storage_.end() && known->second == &saved) {
    by_storage_.erase(known);
  }
  if (saved.on_host.defined()) {
    saved.on_host.after = saved.copying;
    copies_.give_back(saved.on_host);
    statistics_.live_host_bytes -= saved.bytes;
  }
  if (on_its_way_ == &saved) {
    on_its_way_ = nullptr;
  }
  --statistics_.live_storages;
  storages_.erase(saved.self);
}

} // namespace tessera::offload
