// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/token_batches.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/stack.h>

#include <cmath>
#include <utility>

namespace tessera::zoo {

TokenBatches::TokenBatches(TokenFile tokens, int64_t length, c10::Device device)
    : tokens_(std::move(tokens)), length_(length), device_(device) {}

size_t TokenBatches::size() const {
  return static_cast<size_t>(tokens_.size() / length_);
}

std::string TokenBatches::text() const {
  return formatted("{} tokens in sequences of {}", tokens_.size(), length_);
}

ModelInput TokenBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool loss_only) const {
  std::vector<at::Tensor> texts;
  for (const size_t example : examples) {
    texts.push_back(
        tokens_.read(static_cast<int64_t>(example) * length_, length_));
  }
  ModelInput batch;
  batch.input_ids = runtime::to_device(at::stack(texts), device_);
  batch.labels = batch.input_ids;
  batch.loss_only = loss_only;
  return batch;
}

TaskScore TokenBatches::report(const Score& score) const {
  return token_score(score);
}

TaskScore token_score(const Score& score) {
  return {
      formatted(
          "loss {:.4f} over {} tokens (perplexity {:.2f})",
          score.loss,
          score.items,
          std::exp(score.loss)),
      {{"heldout_loss", score.loss}, {"heldout_tokens", score.items}}};
}

} // namespace tessera::zoo
