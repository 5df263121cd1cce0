// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the knowledge of [Note: divided weights] sits in a tensor.

#include "tessera/sharding/parallel/divided_weight.h"

#include <c10/core/TensorImpl.h>

#include <memory>

namespace tessera {

constexpr auto kDividedKey = c10::DispatchKey::DeferredInit;

struct DividedTag : c10::BackendMeta {
  std::shared_ptr<const DividedParameter> what;
  bool is_transposed = false; ///< of the parameter, as x W^T takes it
};

/// Null when there is none, as in slices of a divided weight.
const DividedTag* divided_tag(const at::Tensor& tensor);

/// Gives the tensor the key and the tag.
void set_divided_tag(
    const at::Tensor& tensor,
    std::shared_ptr<const DividedParameter> what,
    bool is_transposed);

/// Idempotent, thread-safe.
void register_divided_operators();

} // namespace tessera
