// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/model_parts.h"

#include "tessera/runtime/comm/gather_texts.h"

#include <utility>

namespace tessera::engine {

ModelParts::ModelParts(std::unique_ptr<Communicator> ranks, bool is_first)
    : ranks_(std::move(ranks)), is_first_(is_first) {}

std::vector<std::string> ModelParts::texts(
    const std::string& text,
    const WaitCheck& check) {
  if (ranks_ == nullptr) {
    return {text};
  }
  return runtime::gather_texts(
      *ranks_, text, "tensors of each part of the model", check);
}

void ModelParts::broadcast(
    int root,
    const at::Tensor& value,
    const WaitCheck& check) {
  if (count() > 1 && is_first_ && value.numel() > 0) {
    // As bytes: not every backend supports every dtype.
    ranks_
        ->broadcast(
            value.view({-1}).view(at::kByte),
            root,
            "a tensor of another part of the model")
        .wait(check);
  }
}

} // namespace tessera::engine
