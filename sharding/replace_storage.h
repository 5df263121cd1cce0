// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors that look at other memory from now on.

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace tessera {

/// Puts the tensor over another storage, of elements of any type and on any
/// device, in place: whoever holds it sees the change. Sizes, strides and
/// offset stay; nothing is read or copied.
void replace_storage(
    const at::Tensor& tensor,
    const c10::Storage& storage,
    at::ScalarType dtype);

} // namespace tessera
