// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/local_slice.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/tensor_parallel/slice_init.h"

#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

at::Tensor deferred_slice(const at::Tensor& full, const TensorSpec& spec) {
  TESSERA_CHECK(
      full.is_contiguous() && full.storage_offset() == 0,
      "a deferred parameter of sizes {} is a view of another tensor and cannot be divided; materialize() the module first.",
      full.sizes());
  if (InitMethod declared = declared_init(full)) {
    return DistributedParameter(
        spec.local_sizes(),
        slice_init(std::move(declared), spec.sizes, spec.part().ranges),
        {full.scalar_type(), full.device(), full.requires_grad()});
  }
  DeferredInit init = *deferred_init(*full.storage().unsafeGetStorageImpl());
  const std::vector<int64_t> sizes = spec.local_sizes();
  const InitMethod method = slice_init(
      [fill = init.fill](
          const at::Tensor& target, const InitPosition& position) {
        fill(target, position.first_element);
      },
      spec.sizes,
      spec.part().ranges);
  init.fill = [method, sizes](const at::Tensor& target, int64_t first) {
    method(target, {sizes, first, {}});
  };
  return make_deferred(sizes, full.options(), std::move(init));
}

} // namespace

at::Tensor local_slice(const at::Tensor& full, const TensorSpec& spec) {
  if (is_deferred(full)) {
    return deferred_slice(full, spec);
  }
  at::Tensor slice = full.detach();
  for (const DimRange& range : spec.part().ranges) {
    slice = slice.narrow(range.dim, range.begin, range.end - range.begin);
  }
  return slice.clone(at::MemoryFormat::Contiguous);
}

} // namespace tessera::sharding
