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

} // namespace tessera
