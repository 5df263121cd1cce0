// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ReplacedKernels` are kernels that take the place of LibTorch's.

#include "tessera/runtime/core/no_warnings.h"

#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <optional>

namespace tessera::runtime {

/// The key under which LibTorch has its kernels for a device.
inline c10::DispatchKeySet kernels_of(c10::Device device) {
  return c10::DispatchKeySet(
      c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

/// A set of them, in place or not for each type of device. Never destroy one:
/// the dispatcher may be destroyed first.
class ReplacedKernels {
 public:
  /// @param add adds the kernels to a library of "aten".
  explicit ReplacedKernels(void (*add)(torch::Library& library)) : add_(add) {}

  /// Puts them in place, or LibTorch's back. Idempotent. Do not call it while
  /// operators run.
  void replace(bool wanted, c10::DeviceType device) {
    if (!wanted) {
      by_device_.erase(device);
      return;
    }
    auto& library = by_device_[device];
    if (library == nullptr) {
      const NoWarnings silent;
      library = std::make_unique<torch::Library>(
          torch::Library::IMPL,
          "aten",
          kernels_of(c10::Device(device)).highestPriorityTypeId(),
          __FILE__,
          __LINE__);
      add_(*library);
    }
  }
  bool are_in_place(c10::DeviceType device) const {
    return by_device_.count(device) > 0;
  }

 private:
  void (*add_)(torch::Library& library);
  std::map<c10::DeviceType, std::unique_ptr<torch::Library>> by_device_;
};

} // namespace tessera::runtime
