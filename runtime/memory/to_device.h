// SPDX-License-Identifier: Apache-2.0
#pragma once
// Batches on their way to where the model is.

#include <ATen/core/Tensor.h>

namespace tessera {

/// `host` on `device`; itself if it is there. To CUDA it goes through pinned
/// memory on the current stream, and the host does not wait: LibTorch keeps the
/// pinned memory until the copy is done.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

} // namespace tessera
