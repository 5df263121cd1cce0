// SPDX-License-Identifier: Apache-2.0
#include "support/vdev/vdev_memory.h"

#include "tessera/runtime/memory/host_pinning.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::tests::vdev {

namespace {

constexpr size_t kArenaBytes = size_t{8} << 30; // of addresses
constexpr size_t kGranule = 512;
constexpr auto kAll =
    static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

using Lock = std::lock_guard<std::recursive_mutex>;

std::recursive_mutex& mutex() {
  return Runtime::instance().mutex();
}

Range range_of(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes};
}

const c10::impl::DeviceGuardImplInterface& guard() {
  return *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
}

} // namespace

void free_device_memory(void* data) {
  DeviceMemory::instance().free(data);
}

void free_pinned_memory(void* data) {
  PinnedMemory::instance().free(data);
}

DeviceMemory& DeviceMemory::instance() {
  static auto* const kMemory = new DeviceMemory; // outlives all tensors
  return *kMemory;
}

c10::DataPtr DeviceMemory::allocate(size_t bytes) {
  const c10::Device current = guard().getDevice();
  if (bytes == 0) {
    return {nullptr, nullptr, &free_device_memory, current};
  }
  const c10::Stream stream = guard().getStream(current);
  const Lock lock(mutex());
  Device& device = devices_[static_cast<size_t>(current.index())];
  release_retired(device);
  const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
  auto& idle = device.idle[{stream.id(), size}];
  Block* block = nullptr;
  if (!idle.empty()) {
    block = idle.back();
    idle.pop_back();
  } else {
    if (device.arena == nullptr) {
      void* arena = ::mmap(
          nullptr,
          kArenaBytes,
          PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
          -1,
          0);
      TORCH_CHECK(arena != MAP_FAILED, "vdev: no addresses for device memory");
      device.arena = static_cast<std::byte*>(arena);
    }
    TORCH_CHECK(
        device.used + size <= kArenaBytes, "vdev: device memory is used up");
    auto made = std::make_unique<Block>();
    made->data = device.arena + device.used;
    made->bytes = size;
    made->owner = stream;
    device.used += size;
    device.stats.reserved_bytes[kAll].increase(size);
    std::memset(made->data, kPoison, size);
    block = made.get();
    blocks_.emplace(reinterpret_cast<uintptr_t>(made->data), std::move(made));
  }
  block->is_live = true;
  Runtime::instance().note_allocation(range_of(block->data, block->bytes));
  device.stats.allocated_bytes[kAll].increase(size);
  device.stats.allocation[kAll].increase(1);
  return {block->data, block->data, &free_device_memory, current};
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const {
  return &free_device_memory;
}

void DeviceMemory::copy_data(
    void* /*into*/,
    const void* /*from*/,
    size_t /*bytes*/) const {
  TORCH_CHECK(false, "vdev: copy_data() of device memory");
}

void DeviceMemory::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  // Memory that is wrapped, as by from_blob(), has another deleter: CUDA's
  // allocator ignores it as well.
  if (data.get() == nullptr || data.get_deleter() != &free_device_memory) {
    return;
  }
  const Lock lock(mutex());
  Block& block = *blocks_.at(reinterpret_cast<uintptr_t>(data.get()));
  const bool is_known =
      std::find(block.users.begin(), block.users.end(), stream) !=
      block.users.end();
  if (stream != *block.owner && !is_known) {
    block.users.push_back(stream);
  }
}

void DeviceMemory::free(void* data) {
  if (data == nullptr) {
    return;
  }
  const Lock lock(mutex());
  Block& block = *blocks_.at(reinterpret_cast<uintptr_t>(data));
  Device& device = devices_[static_cast<size_t>(block.owner->device_index())];
  block.is_live = false;
  device.stats.allocated_bytes[kAll].decrease(block.bytes);
  device.stats.allocation[kAll].decrease(1);
  if (block.users.empty()) {
    release(block);
    return;
  }
  Retired retired{&block, {}};
  for (const c10::Stream& user : std::exchange(block.users, {})) {
    retired.marks.push_back(Runtime::instance().record(user));
  }
  device.retired.push_back(std::move(retired));
}

void DeviceMemory::release(Block& block) {
  Runtime::instance().issue(
      *block.owner,
      {.name = kRelease,
       .accesses = {{range_of(block.data, block.bytes), /*is_write=*/true}},
       .run =
           [data = block.data, bytes = block.bytes](bool) {
             std::memset(data, kPoison, bytes);
             return true;
           },
       .also_after = {},
       .may_throw = false});
  devices_[static_cast<size_t>(block.owner->device_index())]
      .idle[{block.owner->id(), block.bytes}]
      .push_back(&block);
}

void DeviceMemory::release_retired(Device& device) {
  std::vector<Retired> waiting;
  for (Retired& retired : std::exchange(device.retired, {})) {
    const bool is_free = std::all_of(
        retired.marks.begin(), retired.marks.end(), [](const auto& mark) {
          return mark->done && Runtime::instance().is_done(*mark);
        });
    if (is_free) {
      release(*retired.block);
    } else {
      waiting.push_back(std::move(retired));
    }
  }
  device.retired.insert(
      device.retired.end(),
      std::make_move_iterator(waiting.begin()),
      std::make_move_iterator(waiting.end()));
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(
    c10::DeviceIndex index) {
  const Lock lock(mutex());
  return devices_.at(static_cast<size_t>(index)).stats;
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex index) {
  const Lock lock(mutex());
  devices_.at(static_cast<size_t>(index))
      .stats.allocated_bytes[kAll]
      .reset_accumulated();
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex index) {
  const Lock lock(mutex());
  devices_.at(static_cast<size_t>(index))
      .stats.allocated_bytes[kAll]
      .reset_peak();
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex index) {
  const Lock lock(mutex());
  const Device& device = devices_.at(static_cast<size_t>(index));
  return {kArenaBytes - device.used - taken_elsewhere_, kArenaBytes};
}

void DeviceMemory::take_elsewhere(size_t bytes) {
  const Lock lock(mutex());
  taken_elsewhere_ = bytes;
}

std::optional<c10::Device> DeviceMemory::device_of(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& candidate = devices_[i];
    if (candidate.arena != nullptr && at >= candidate.arena &&
        at < candidate.arena + candidate.used) {
      return device(static_cast<c10::DeviceIndex>(i));
    }
  }
  return std::nullopt;
}

bool DeviceMemory::is_live(const Range& range) {
  const Lock lock(mutex());
  auto found = blocks_.upper_bound(range.begin);
  if (found == blocks_.begin()) {
    return false;
  }
  const Block& block = *(--found)->second;
  return block.is_live && range.end <= found->first + block.bytes;
}

PinnedMemory& PinnedMemory::instance() {
  static auto* const kMemory = new PinnedMemory; // outlives all tensors
  return *kMemory;
}

c10::DataPtr PinnedMemory::allocate(size_t bytes) {
  if (bytes == 0) {
    return {nullptr, nullptr, &free_pinned_memory, c10::kCPU};
  }
  const Lock lock(mutex());
  const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
  for (auto& [begin, region] : regions_) {
    // As LibTorch's cache: only when the copies that use it have ended.
    if (region.is_idle && region.bytes == size &&
        Runtime::instance().pending_use({begin, begin + size}).empty()) {
      region.is_idle = false;
      Runtime::instance().note_allocation({begin, begin + size});
      auto* data = reinterpret_cast<void*>(begin);
      std::memset(data, kPoison, size);
      return {data, data, &free_pinned_memory, c10::kCPU};
    }
  }
  void* data = std::aligned_alloc(kGranule, size);
  std::memset(data, kPoison, size);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  regions_[begin] = {size, false};
  Runtime::instance().note_allocation({begin, begin + size});
  return {data, data, &free_pinned_memory, c10::kCPU};
}

c10::DeleterFnPtr PinnedMemory::raw_deleter() const {
  return &free_pinned_memory;
}

void PinnedMemory::copy_data(void* into, const void* from, size_t bytes) const {
  std::memcpy(into, from, bytes);
}

void PinnedMemory::free(void* data) {
  if (data != nullptr) {
    const Lock lock(mutex());
    regions_.at(reinterpret_cast<uintptr_t>(data)).is_idle = true;
  }
}

void PinnedMemory::add(void* data, size_t bytes) {
  const Lock lock(mutex());
  regions_[reinterpret_cast<uintptr_t>(data)] = {bytes, false};
}

void PinnedMemory::remove(void* data) {
  const Lock lock(mutex());
  const auto found = regions_.find(reinterpret_cast<uintptr_t>(data));
  if (found == regions_.end()) {
    Runtime::instance().note_violation(
        "memory is unpinned that was not pinned");
    return;
  }
  const Range range = range_of(data, found->second.bytes);
  const std::string use = Runtime::instance().pending_use(range);
  if (!use.empty()) {
    Runtime::instance().note_violation(
        "host memory is unpinned while " + use +
        " may not have ended: the host has not waited for it");
  }
  Runtime::instance().forget(range);
  regions_.erase(found);
}

bool PinnedMemory::contains(const void* data) {
  const Lock lock(mutex());
  const auto at = reinterpret_cast<uintptr_t>(data);
  auto found = regions_.upper_bound(at);
  if (found == regions_.begin()) {
    return false;
  }
  --found;
  return at < found->first + found->second.bytes;
}

void install_memory() {
  c10::SetAllocator(
      c10::DeviceType::PrivateUse1, &DeviceMemory::instance(), 255);
  runtime::register_host_pinning(
      {.pin = [](void* data, size_t bytes) -> std::string {
         PinnedMemory::instance().add(data, bytes);
         return "";
       },
       .unpin = [](void* data) { PinnedMemory::instance().remove(data); },
       .bus_id = nullptr});
}

} // namespace tessera::tests::vdev
