// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/check_length.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

void check_length(
    const at::Tensor& tensor,
    int64_t dim,
    int64_t expected,
    const char* function,
    const Communicator& group) {
  TESSERA_CHECK(
      tensor.size(dim) == expected,
      function,
      ": dimension ",
      dim,
      " of a tensor of sizes ",
      tensor.sizes(),
      " should have ",
      expected,
      " elements on rank ",
      group.rank(),
      " of the group '",
      group.name(),
      "'.");
}

void check_divides(
    const at::Tensor& tensor,
    int64_t dim,
    const char* function,
    const Communicator& group) {
  const int64_t length = tensor.size(dim);
  TESSERA_CHECK(
      length > 0 && length % group.size() == 0,
      function,
      ": dimension ",
      dim,
      " of a tensor of sizes ",
      tensor.sizes(),
      " is not divided by the ",
      group.size(),
      " ranks of the group '",
      group.name(),
      "'. Under sequence parallelism, pad sequences to a multiple of them.");
}

} // namespace tessera
