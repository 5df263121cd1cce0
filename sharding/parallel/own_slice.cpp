// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/own_slice.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/parallel/slice_init.h"

#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

at::Tensor deferred_slice(const at::Tensor& whole, ParameterSlice slice) {
  TESSERA_CHECK(
      whole.is_contiguous() && whole.storage_offset() == 0,
      "a deferred parameter of sizes {} is a view of another tensor and cannot be divided; materialize() the module first.",
      whole.sizes());
  DeferredInit init = *deferred_init(*whole.storage().unsafeGetStorageImpl());
  std::vector<int64_t> sizes = slice.sizes;
  sizes[static_cast<size_t>(slice.dim)] = slice.length;
  const InitMethod method = slice_init(
      [fill = init.fill](const at::Tensor& target, const InitPlace& place) {
        fill(target, place.first_element);
      },
      std::move(slice));
  init.fill = [method, sizes](const at::Tensor& target, int64_t first) {
    method(target, {sizes, first, {}});
  };
  return make_deferred(sizes, whole.options(), std::move(init));
}

} // namespace

at::Tensor own_slice(
    const at::Tensor& whole,
    const ParameterPart& part,
    int rank) {
  const int64_t begin = part.split.begin(rank);
  const int64_t length = part.split.length(rank);
  if (is_deferred(whole)) {
    return deferred_slice(
        whole, {whole.sizes().vec(), part.dim, begin, length});
  }
  return whole.detach()
      .narrow(part.dim, begin, length)
      .clone(at::MemoryFormat::Contiguous);
}

} // namespace tessera::sharding
