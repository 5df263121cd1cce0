// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/replace_storage.h"

#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <c10/core/TensorOptions.h>

namespace tessera::sharding {

void replace_storage(
    const at::Tensor& tensor,
    const c10::Storage& storage,
    at::ScalarType dtype) {
  auto replacement = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(
          c10::computeDispatchKey(dtype, c10::kStrided, storage.device())),
      c10::scalarTypeToTypeMeta(dtype));
  replacement.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (at::_has_compatible_shallow_copy_type(tensor, replacement)) {
    tensor.set_data(replacement);
    return;
  }
  // LibTorch calls a device that it does not know itself (PrivateUse1) never
  // compatible. What else set_data() does is for gradients of earlier use.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(
      replacement.getIntrusivePtr());
}

} // namespace tessera::sharding
