// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/page_key.h"

#include "tessera/sharding/interception/tensor_keys.h"

namespace tessera::sharding {

void add_page_key(const at::Tensor& tensor) {
  add_key(tensor, kPageKey);
}

void remove_page_key(const at::Tensor& tensor) {
  remove_key(tensor, kPageKey);
}

bool has_page_key(const at::Tensor& tensor) {
  return tensor.key_set().has(kPageKey);
}

} // namespace tessera::sharding
