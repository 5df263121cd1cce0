// SPDX-License-Identifier: Apache-2.0
#pragma once
// `add_key()` and `remove_key()` change the dispatch keys of a tensor, for
// which LibTorch has no function.

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace tessera::sharding {

namespace detail {

// key_set_ is protected in TensorImpl.
struct KeySetAccess : c10::TensorImpl {
  static c10::DispatchKeySet& of(const at::Tensor& tensor) {
    return (*tensor.unsafeGetTensorImpl()).*(&KeySetAccess::key_set_);
  }
};

} // namespace detail

/// Makes operators on `tensor`, and on views made of it from now on, go through
/// the kernels of `key` as well.
inline void add_key(const at::Tensor& tensor, c10::DispatchKey key) {
  auto& keys = detail::KeySetAccess::of(tensor);
  keys = keys.add(key);
}

inline void remove_key(const at::Tensor& tensor, c10::DispatchKey key) {
  auto& keys = detail::KeySetAccess::of(tensor);
  keys = keys.remove(key);
}

} // namespace tessera::sharding
