// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/waiting_parts.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace tessera::zoo {

std::vector<at::Tensor> WaitingParts::add(
    const NamedWeight& weight,
    size_t index,
    const at::Tensor& value) {
  if (weight.native.size() == 1) {
    return {value};
  }
  auto& waiting = waiting_[weight.name];
  waiting.resize(weight.native.size());
  waiting[index] = value.clone();
  if (std::any_of(waiting.begin(), waiting.end(), [](const auto& part) {
        return !part.defined();
      })) {
    return {};
  }
  auto parts = std::move(waiting);
  waiting_.erase(weight.name);
  return parts;
}

} // namespace tessera::zoo
