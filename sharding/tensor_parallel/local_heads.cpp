// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/local_heads.h"

#include <ATen/ops/tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::sharding {

namespace {

constexpr int64_t kHeads = -3; ///< dimension of heads in [.., h, S, n]

/// @param queries how query heads are divided.
at::Tensor local_heads(
    const at::Tensor& x,
    const DimSplit& queries,
    Communicator& group) {
  const int64_t heads = x.size(kHeads);
  const int64_t queries_per_head = queries.size() / heads;
  const int64_t begin = queries.begin(group.rank());
  const int64_t count = queries.length(group.rank());
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper != nullptr && wrapper->divided() &&
      wrapper->dim_from_end() == kHeads) {
    const DimSplit& split = wrapper->divided()->split;
    if (split.begin(group.rank()) * queries_per_head == begin &&
        split.length(group.rank()) * queries_per_head == count) {
      return local_of(x);
    }
  }
  const at::Tensor full = shared(full_tensor(x), group);
  const int64_t first = begin / queries_per_head;
  const int64_t last = (begin + count - 1) / queries_per_head;
  if (first == last ||
      (begin % queries_per_head == 0 && count % queries_per_head == 0)) {
    return full.narrow(kHeads, first, last - first + 1);
  }
  std::vector<int64_t> of_queries;
  for (int64_t query = begin; query < begin + count; ++query) {
    of_queries.push_back(query / queries_per_head);
  }
  return full.index_select(
      full.dim() + kHeads,
      at::tensor(of_queries, full.options().dtype(at::kLong)));
}

} // namespace

LocalHeads::LocalHeads(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& mask)
    : query(local_tensor(query)),
      key(key),
      value(value),
      mask(mask),
      layout(query) {
  if (layout.tp == nullptr || !layout.divided) {
    return;
  }
  Communicator& group = *layout.tp->group;
  const DimSplit& split = layout.divided->split;
  this->key = local_heads(key, split, group);
  this->value = local_heads(value, split, group);
  this->mask = operand(mask, kHeads, split, group);
}

at::Tensor LocalHeads::full(const at::Tensor& result) const {
  return with_layout(result, layout);
}

} // namespace tessera::sharding
