// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/key_value_cache.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/dtensor_impl.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <utility>

namespace tessera::zoo {

namespace {

at::Tensor empty_for(const at::Tensor& like, int64_t capacity) {
  const at::Tensor part = local_tensor(like);
  return sharding::with_layout(
      at::empty(
          {part.size(0), part.size(1), capacity, part.size(3)}, part.options()),
      sharding::Layout(like));
}

} // namespace

KeyValueCache::KeyValueCache(int64_t capacity) : capacity_(capacity) {
  TESSERA_CHECK(
      capacity >= 1,
      "KeyValueCache: the capacity is {} tokens; it must be 1 or more",
      capacity);
}

void KeyValueCache::resize(int64_t length, int64_t capacity) {
  TESSERA_CHECK(
      length >= 0 && length <= length_ && length <= capacity,
      "KeyValueCache: {} of {} tokens are to be kept, with room for {}",
      length,
      length_,
      capacity);
  length_ = length;
  if (capacity == capacity_) {
    return;
  }
  capacity_ = capacity;
  for (auto& [layer, both] : growing_) {
    for (at::Tensor* tensor : {&both.first, &both.second}) {
      at::Tensor grown = empty_for(*tensor, capacity);
      grown.narrow(2, 0, length).copy_(tensor->narrow(2, 0, length));
      *tensor = std::move(grown);
    }
  }
  for (auto& [name, tensor] : inputs_) {
    at::Tensor grown = at::empty({tensor.size(0), capacity}, tensor.options());
    grown.narrow(1, 0, length).copy_(tensor.narrow(1, 0, length));
    tensor = std::move(grown);
  }
}

KeyValueCache::KeysAndValues KeyValueCache::extend(
    const void* layer,
    const at::Tensor& key,
    const at::Tensor& value) {
  const int64_t end = length_ + key.size(2);
  TESSERA_CHECK(
      end <= capacity_,
      "KeyValueCache: sequences of {} tokens exceed the capacity of {}",
      end,
      capacity_);
  auto& [keys, values] = growing_[layer];
  if (!keys.defined()) {
    keys = empty_for(key, capacity_);
    values = empty_for(value, capacity_);
  }
  TESSERA_CHECK(
      keys.size(0) == key.size(0),
      "KeyValueCache: a batch of {} rows follows one of {}",
      key.size(0),
      keys.size(0));
  keys.narrow(2, length_, key.size(2)).copy_(key);
  values.narrow(2, length_, key.size(2)).copy_(value);
  return {keys.narrow(2, 0, end), values.narrow(2, 0, end)};
}

at::Tensor KeyValueCache::extend_input(
    const std::string& name,
    const at::Tensor& tokens) {
  const auto found = inputs_.find(name);
  TESSERA_CHECK(
      length_ == 0 || tokens.defined() == (found != inputs_.end()),
      "KeyValueCache: {} is {} for the new tokens, unlike for the {} tokens before; give it for all or none",
      name,
      tokens.defined() ? "given" : "missing",
      length_);
  if (!tokens.defined()) {
    return {};
  }
  const int64_t end = length_ + tokens.size(1);
  TESSERA_CHECK(
      end <= capacity_,
      "KeyValueCache: sequences of {} tokens exceed the capacity of {}",
      end,
      capacity_);
  at::Tensor& all = inputs_[name];
  if (!all.defined()) {
    all = at::empty({tokens.size(0), capacity_}, tokens.options());
  }
  all.narrow(1, length_, tokens.size(1)).copy_(tokens);
  return all.narrow(1, 0, end);
}

const KeyValueCache::KeysAndValues* KeyValueCache::kept(
    const void* layer) const {
  const auto found = kept_.find(layer);
  return found == kept_.end() ? nullptr : &found->second;
}

KeyValueCache::KeysAndValues KeyValueCache::keep(
    const void* layer,
    KeysAndValues full) {
  return kept_[layer] = std::move(full);
}

void KeyValueCache::reorder(const at::Tensor& rows) {
  const auto chosen = [&](at::Tensor& tensor) {
    if (tensor.defined()) {
      tensor = at::index_select(tensor, 0, rows.to(tensor.device()));
    }
  };
  for (auto* layers : {&growing_, &kept_}) {
    for (auto& [layer, both] : *layers) {
      chosen(both.first);
      chosen(both.second);
    }
  }
  for (auto& [name, tensor] : inputs_) {
    chosen(tensor);
  }
  chosen(memory);
}

} // namespace tessera::zoo
