// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/check_length.h"

#include "tessera/runtime/core/error.h"

namespace tessera::sharding {

void check_length(
    const at::Tensor& tensor,
    int64_t dim,
    int64_t expected,
    const char* function,
    const Communicator& group) {
  TESSERA_CHECK(
      tensor.size(dim) == expected,
      "{}: dimension {} of a tensor of sizes {} should have {} elements on rank {} of the group '{}'.",
      function,
      dim,
      tensor.sizes(),
      expected,
      group.rank(),
      group.name());
}

void check_divides(
    const at::Tensor& tensor,
    int64_t dim,
    const char* function,
    const Communicator& group) {
  const int64_t length = tensor.size(dim);
  TESSERA_CHECK(
      length > 0 && length % group.size() == 0,
      "{}: dimension {} of a tensor of sizes {} is not divisible by the {} ranks of the group '{}'. Under sequence parallelism, pad sequences to a multiple of their number.",
      function,
      dim,
      tensor.sizes(),
      group.size(),
      group.name());
}

} // namespace tessera::sharding
