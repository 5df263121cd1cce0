// SPDX-License-Identifier: Apache-2.0
#pragma once
// `to_device()` copies batches to the device of the model.

#include <ATen/core/Tensor.h>

namespace tessera::runtime {

/// Returns `host` in pinned memory if `device` is an accelerator, else `host`
/// itself.
at::Tensor pinned_for(const at::Tensor& host, c10::Device device);

/// Returns `host` on `device`, or `host` itself if it is there already. Copies
/// to CUDA use pinned memory and the current stream and do not block the host;
/// LibTorch keeps the pinned memory until the copy is done.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

} // namespace tessera::runtime
