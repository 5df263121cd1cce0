// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/slice_init.h"

#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <c10/util/accumulate.h>

#include <utility>

namespace tessera::sharding {

InitMethod slice_init(
    InitMethod full,
    std::vector<int64_t> sizes,
    std::vector<DimRange> ranges) {
  return [full = std::move(full),
          sizes = std::move(sizes),
          ranges = std::move(ranges)](
             const at::Tensor& target, const InitPosition& position) {
    if (!runtime::has_dry_values(target.const_data_ptr())) {
      return; // a dry run; there may be millions of runs of elements
    }
    const TensorSlice slice{ranges, position.first_element, target.numel()};
    const TensorSlice all{{}, 0, c10::multiply_integers(sizes)};
    for (const CommonBlock& block :
         intersect(blocks_of(sizes, slice), blocks_of(sizes, all))) {
      for_each_segment(block, [&](int64_t here, int64_t there, int64_t numel) {
        full(target.narrow(0, here, numel), {sizes, there, position.random});
      });
    }
  };
}

} // namespace tessera::sharding
