// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/slice_init.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

InitMethod slice_init(InitMethod whole, ParameterSlice slice) {
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(slice.dim) + 1; d < slice.sizes.size();
       ++d) {
    inner *= slice.sizes[d];
  }
  const int64_t whole_run = slice.sizes[static_cast<size_t>(slice.dim)] * inner;
  return [=, whole = std::move(whole), slice = std::move(slice)](
             const at::Tensor& target, const InitPlace& place) {
    const int64_t own_run = slice.length * inner;
    for (int64_t done = 0; done < target.numel();) {
      const int64_t element = place.first_element + done;
      const int64_t offset = element % own_run;
      const int64_t count = std::min(own_run - offset, target.numel() - done);
      whole(
          target.narrow(0, done, count),
          {slice.sizes,
           element / own_run * whole_run + slice.begin * inner + offset,
           place.random});
      done += count;
    }
  };
}

} // namespace tessera::sharding
