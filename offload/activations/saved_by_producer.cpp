// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/saved_by_producer.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>

namespace tessera::offload {

namespace {

std::string name_of(std::type_index producer) {
  if (producer == typeid(void)) {
    return "input";
  }
  std::string name = c10::demangle(producer.name());
  // CppNode<Mine> keeps its argument; operators lose their namespace.
  if (name.find('<') == std::string::npos) {
    const size_t scope = name.rfind("::");
    name = scope == std::string::npos ? name : name.substr(scope + 2);
  }
  return name;
}

} // namespace

SavedByProducerCounts::Count& SavedByProducerCounts::of(
    const at::Tensor& tensor) {
  // Not tensor.grad_fn(), which makes a new node for a changed view.
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  const auto* node = meta == nullptr ? nullptr : meta->grad_fn_.get();
  return counts_
      [node == nullptr ? std::type_index(typeid(void))
                       : std::type_index(typeid(*node))];
}

std::vector<SavedByProducer> SavedByProducerCounts::report() const {
  std::vector<SavedByProducer> rows;
  for (const auto& [producer, count] : counts_) {
    rows.push_back(
        {name_of(producer), count.storages, count.bytes, count.bytes_left});
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.producer < b.producer;
  });
  return rows;
}

} // namespace tessera::offload
