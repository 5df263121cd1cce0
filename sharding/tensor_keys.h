// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dispatch keys of a tensor that LibTorch does not let one change.

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace tessera {

namespace detail {

// key_set_ is protected in TensorImpl.
struct KeySetAccess : c10::TensorImpl {
  static c10::DispatchKeySet& of(const at::Tensor& tensor) {
    return (*tensor.unsafeGetTensorImpl()).*(&KeySetAccess::key_set_);
  }
};

} // namespace detail

/// Operators on `tensor`, and on views that are made of it from now on, go
/// through the kernels of `key` as well.
inline void add_key(const at::Tensor& tensor, c10::DispatchKey key) {
  auto& keys = detail::KeySetAccess::of(tensor);
  keys = keys.add(key);
}

inline void remove_key(const at::Tensor& tensor, c10::DispatchKey key) {
  auto& keys = detail::KeySetAccess::of(tensor);
  keys = keys.remove(key);
}

} // namespace tessera
