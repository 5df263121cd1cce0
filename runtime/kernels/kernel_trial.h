// SPDX-License-Identifier: Apache-2.0
#pragma once
// `KernelTrial` is the check of one CUDA kernel ([Note: the check of CUDA
// kernels]) that stands in the kernel's own file, without a number in the
// tables of kernel_problems.h.

#include "tessera/runtime/kernels/kernel_problems.h"

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

/// What the check of a kernel on a device has found.
enum class KernelState : uint8_t { kUnchecked, kServes, kReplaced };

inline constexpr size_t kMostKernelDevices =
    std::numeric_limits<c10::DeviceIndex>::max();

class KernelTrial {
 public:
  /// Solves the kernel's small problem on the current stream of the device, the
  /// current one, by the kernel or by LibTorch's operators. As
  /// KernelProblem::run.
  using Solve = std::function<
      std::vector<KernelResult>(bool by_operators, c10::Device device)>;

  /// @param name "softmax_loss_ of float32".
  KernelTrial(std::string name, Solve solve);

  /// Whether the kernel serves on the current device, or else the operators.
  /// Waits for the device at the first call. Thread-safe.
  bool serves();

  /// How the kernel's results differ from the operators'; nothing if they do
  /// not. Waits for the device.
  std::optional<std::string> difference(c10::Device device) const;

  const std::string& name() const {
    return name_;
  }

 private:
  std::string name_;
  Solve solve_;
  std::array<std::atomic<KernelState>, kMostKernelDevices> states_{};
};

/// How results differ from those of operators; nothing if they do not. Waits
/// for the device.
std::optional<std::string> difference_of_results(
    std::vector<KernelResult> found,
    std::vector<KernelResult> expected);

} // namespace tessera::runtime
