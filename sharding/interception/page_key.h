// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page key tells the engine that an operator is about to use a sharded
// parameter.
//
// [Note: page key] Each sharded parameter carries one extra dispatch key of the
// highest priority, above autograd and autocast. The fallback registered on it
// (page_faults.h) sees every operator that takes such a tensor or a view of one
// (views inherit the key), pages the data in, and calls the operator again with
// the key excluded. The key is TESTING_ONLY_GenericWrapper, the only one that
// LibTorch leaves unused; its registration is process-wide, so it is in
// page_faults.cpp only.

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace tessera::sharding {

inline constexpr auto kPageKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

void add_page_key(const at::Tensor& tensor);
void remove_page_key(const at::Tensor& tensor);
bool has_page_key(const at::Tensor& tensor);

} // namespace tessera::sharding
