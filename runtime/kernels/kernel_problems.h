// SPDX-License-Identifier: Apache-2.0
#pragma once
// `KernelProblem` is a small problem on which a kernel is compared with
// LibTorch's operators, and the number by which the check knows the kernel.

#include "tessera/runtime/kernels/device_kernels.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::runtime {

// Numbers of kernels: those that are compiled apart are checked apart.

inline constexpr size_t kElementTypes = 4;
inline constexpr size_t kCodeTypes = 5;

inline constexpr size_t kFirstMoments = std::variant_size_v<UpdateShards>;
inline constexpr size_t kFirstPack =
    kFirstMoments + std::variant_size_v<LambShards>;
inline constexpr size_t kFirstBlocks = kFirstPack + kElementTypes;
inline constexpr size_t kFirstNorm = kFirstBlocks + kCodeTypes * kElementTypes;
inline constexpr size_t kFirstBias = kFirstNorm + kElementTypes;
inline constexpr size_t kFirstSums = kFirstBias + kElementTypes;
inline constexpr size_t kRowCopyKernel = kFirstSums + kElementTypes;
inline constexpr size_t kKernels = kRowCopyKernel + 1;

inline size_t kernel_of(const UpdateShards& shards) {
  return shards.index();
}
inline size_t moments_kernel_of(const LambShards& shards) {
  return kFirstMoments + shards.index();
}
inline size_t pack_kernel_of(ElementType target) {
  return kFirstPack + static_cast<size_t>(target);
}
inline size_t blocks_kernel_of(CodeType code, ElementType values) {
  return kFirstBlocks + static_cast<size_t>(code) * kElementTypes +
         static_cast<size_t>(values);
}
inline size_t norm_kernel_of(ElementType x) {
  return kFirstNorm + static_cast<size_t>(x);
}
inline size_t bias_kernel_of(ElementType x) {
  return kFirstBias + static_cast<size_t>(x);
}
inline size_t sums_kernel_of(ElementType x) {
  return kFirstSums + static_cast<size_t>(x);
}

/// An array that a kernel has written, and how far it may be from that of the
/// operators: relative to the element, plus relative to the largest element.
/// Without tolerance the values are equal.
struct KernelResult {
  std::string name;
  at::Tensor values;
  double relative = 0;
  double of_largest = 0;
};

struct KernelProblem {
  size_t kernel;
  std::string name; ///< "adamw_ of float32"
  /// Solves it on the current stream of `device`, the current one. The values
  /// are always the same; no generator of random numbers changes.
  std::function<
      std::vector<KernelResult>(const DeviceKernels&, c10::Device device)>
      run;
};

/// One for each kernel, of some thousand elements: several runs, on and off the
/// alignment of packs, with a rest after them, and all types of gradients,
/// state and low-precision weights.
const std::vector<KernelProblem>& kernel_problems();

/// How the kernels' results differ from those of operator_kernels(); nothing if
/// they do not. Waits for the device.
/// @throws whatever the kernels or the operators do.
std::optional<std::string> difference_from_operators(
    const KernelProblem& problem,
    const DeviceKernels& kernels,
    c10::Device device);

} // namespace tessera::runtime
