// SPDX-License-Identifier: Apache-2.0
#pragma once
// `array_tensor()` is device memory as a tensor, for the kernels that are made
// of LibTorch's operators. Internal.

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/kernels/low_precision.h"
#include "tessera/runtime/kernels/pack_shard.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace tessera::runtime::detail {

// Elements that operators take at a time: temporary tensors are of this size.
inline constexpr int64_t kOperatorChunk = int64_t{1} << 20;

/// The current device of the type that the kernels are for.
inline c10::Device current_kernel_device() {
  return c10::impl::VirtualGuardImpl(load_cuda_backend().device_type)
      .getDevice();
}

inline at::ScalarType dtype_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kFloat64:
      return at::kDouble;
    case ElementType::kFloat16:
      return at::kHalf;
    case ElementType::kBFloat16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

/// [numel], of memory of the current device that it does not own.
inline at::Tensor array_tensor(
    const void* data,
    int64_t numel,
    at::ScalarType dtype) {
  const c10::Device device = current_kernel_device();
  return at::for_blob(const_cast<void*>(data), {numel})
      .options(at::TensorOptions(device).dtype(dtype))
      .target_device(device)
      .make_tensor();
}

/// The type of a tensor's elements if it is one of these; else kNone.
inline LowPrecision low_precision_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return LowPrecision::kBFloat16;
    case at::kHalf:
      return LowPrecision::kFloat16;
    default:
      return LowPrecision::kNone;
  }
}

/// Within it, neither autograd nor autocast takes part in operators.
class PlainOperators {
 private:
  c10::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard keys_{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::autocast_dispatch_keyset};
};

} // namespace tessera::runtime::detail
