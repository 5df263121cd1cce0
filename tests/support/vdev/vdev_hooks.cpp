// SPDX-License-Identifier: Apache-2.0
// What LibTorch asks of an accelerator: whose memory a pointer is, pinned
// memory and random generators.
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_generator.h"
#include "support/vdev/vdev_memory.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstring>

namespace tessera::tests::vdev {

Generator::Generator(c10::DeviceIndex index)
    : c10::GeneratorImpl(
          vdev::device(index),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void Generator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void Generator::set_offset(uint64_t offset) {
  offset_ = offset;
}

uint64_t Generator::get_offset() const {
  return offset_;
}

uint64_t Generator::current_seed() const {
  return seed_;
}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void Generator::set_state(const c10::TensorImpl& state) {
  const auto* values = static_cast<const uint64_t*>(state.data());
  seed_ = values[0];
  offset_ = values[1];
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  const at::Tensor state =
      at::empty({2 * static_cast<int64_t>(sizeof(uint64_t))}, at::kByte);
  const std::array<uint64_t, 2> values{seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), values.data(), sizeof(values));
  return state.getIntrusivePtr();
}

Generator* Generator::clone_impl() const {
  auto* copy = new Generator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

uint64_t Generator::take_seed() {
  const std::lock_guard lock(mutex_);
  return seed_ * 0x9e3779b97f4a7c15 + offset_++;
}

at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, kDevices> generators{
      at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  if (index < 0) {
    index = c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)
                ->getDevice()
                .index();
  }
  return generators.at(static_cast<size_t>(index));
}

namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kDevices;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    guard().setDevice(device(index));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return guard().getDevice().index();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return guard().exchangeDevice(device(index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override {
    return PinnedMemory::instance().contains(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &PinnedMemory::instance();
  }
  /// As CUDA: a null pointer and memory of the host belong to no device.
  c10::Device getDeviceFromPtr(void* data) const override {
    const auto found = DeviceMemory::instance().device_of(data);
    TORCH_CHECK(
        found,
        "vdev: the pointer resides on host memory and is not registered with any device");
    return *found;
  }

  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? 0 : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes)
      const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }

 private:
  static const c10::impl::DeviceGuardImplInterface& guard() {
    return *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
  }
};

} // namespace

void install_hooks() {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  // Without it no memory counts as pinned.
  at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1);
}

} // namespace tessera::tests::vdev
