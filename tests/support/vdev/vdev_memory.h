// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeviceMemory` is the caching allocator of the virtual devices,
// `PinnedMemory` knows which host memory they may copy asynchronously. Both
// behave as LibTorch's for CUDA: freed memory belongs to the stream that was
// current when it was allocated, and the host runs ahead of its use. What is
// freed is overwritten with NaN in the order of that stream.

#include "support/vdev/vdev_runtime.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera::tests::vdev {

/// Every byte of memory without a value: NaN in all floating-point types, -1 in
/// integers.
inline constexpr int kPoison = 0xff;

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  static DeviceMemory& instance();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* into, const void* from, size_t bytes) const override;

  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex index) override;
  void resetAccumulatedStats(c10::DeviceIndex index) override;
  void resetPeakStats(c10::DeviceIndex index) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override;

  /// From now on getMemoryInfo() says that so much is taken by others: what
  /// libraries of a device take.
  void take_elsewhere(size_t bytes);

  /// The device whose memory this is, live or not; null for other memory.
  std::optional<c10::Device> device_of(const void* data) const;
  /// Whether all bytes belong to one live allocation.
  bool is_live(const Range& range);

 private:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    std::optional<c10::Stream> owner;
    std::vector<c10::Stream> users; ///< recordStream()
    bool is_live = false;
  };
  /// A block that becomes free when other streams have passed marks.
  struct Retired {
    Block* block = nullptr;
    std::vector<std::shared_ptr<Mark>> marks;
  };
  struct Device {
    std::byte* arena = nullptr;
    size_t used = 0;
    size_t live_bytes = 0;
    c10::CachingDeviceAllocator::DeviceStats stats;
    /// Free blocks by stream and size, the last one freed first.
    std::map<std::pair<c10::StreamId, size_t>, std::vector<Block*>> idle;
    std::vector<Retired> retired;
  };

  DeviceMemory() = default;
  void free(void* data);
  void release(Block& block);
  void release_retired(Device& device);

  std::array<Device, kDevices> devices_;
  size_t taken_elsewhere_ = 0;
  std::map<uintptr_t, std::unique_ptr<Block>> blocks_; ///< by first byte

  friend void free_device_memory(void* data);
};

/// Host memory that is registered with the devices.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& instance();

  /// As cudaHostAlloc(): for tensors made with pin_memory().
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* into, const void* from, size_t bytes) const override;

  /// As cudaHostRegister() and cudaHostUnregister().
  void add(void* data, size_t bytes);
  void remove(void* data);
  bool contains(const void* data);

 private:
  struct Region {
    size_t bytes = 0;
    bool is_idle = false; ///< allocated here, and free
  };

  PinnedMemory() = default;
  void free(void* data);

  std::map<uintptr_t, Region> regions_;

  friend void free_pinned_memory(void* data);
};

/// Registers DeviceMemory with LibTorch, and PinnedMemory with the product.
void install_memory();

} // namespace tessera::tests::vdev
