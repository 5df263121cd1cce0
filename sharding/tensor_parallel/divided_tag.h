// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DividedTag` marks a tensor as a partition of a weight; see
// [Note: divided weights].

#include "tessera/sharding/tensor_parallel/divided_weight.h"

#include <c10/core/TensorImpl.h>

#include <memory>

namespace tessera::sharding {

constexpr auto kDividedKey = c10::DispatchKey::DeferredInit;

struct DividedTag : c10::BackendMeta {
  std::shared_ptr<const DividedParameter> parameter;
  /// whether it is a transposed view of the parameter, as in x W^T
  bool is_transposed = false;
  /// the tensor that is the parameter, or a transposed view of it: one that
  /// detach() made has its tag and is another. Only compared.
  const c10::TensorImpl* owner = nullptr;
};

/// Returns null if there is no tag, as on slices of a partitioned weight.
const DividedTag* divided_tag(const at::Tensor& tensor);

/// Adds the dispatch key and the tag to the tensor.
/// @param owner that will have the contents of `tensor`; by default itself.
void set_divided_tag(
    const at::Tensor& tensor,
    std::shared_ptr<const DividedParameter> parameter,
    bool is_transposed,
    const c10::TensorImpl* owner = nullptr);

/// Tags `view` as the transposed view of `weight`, if that has a tag.
void mark_transposed(const at::Tensor& view, const at::Tensor& weight);

/// Idempotent, thread-safe.
void register_divided_operators();

} // namespace tessera::sharding
