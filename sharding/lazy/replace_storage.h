// SPDX-License-Identifier: Apache-2.0
#pragma once
// `replace_storage()` makes a tensor use other memory.

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace tessera::sharding {

/// Replaces the storage of a tensor by one with elements of any dtype and on
/// any device, in place: all holders of the tensor see the change. Sizes,
/// strides and offset do not change; nothing is read or copied.
void replace_storage(
    const at::Tensor& tensor,
    const c10::Storage& storage,
    at::ScalarType dtype);

} // namespace tessera::sharding
