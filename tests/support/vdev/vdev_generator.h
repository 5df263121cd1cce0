// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Generator` is the random generator of a virtual device: as on CUDA, an
// operator takes its random numbers by a seed that is fixed when it is issued.

#include "support/vdev/vdev_runtime.h"

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace tessera::tests::vdev {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index);
  static c10::DeviceType device_type() {
    return c10::DeviceType::PrivateUse1;
  }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  /// [16] uint8 on the CPU.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// The seed of the next operator.
  uint64_t take_seed();

 private:
  Generator* clone_impl() const override;

  uint64_t seed_ = 0;
  uint64_t offset_ = 0;
};

/// @param index -1: of the current device.
at::Generator& default_generator(c10::DeviceIndex index = -1);

} // namespace tessera::tests::vdev
