// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/prompt_batch.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera::zoo {

ModelInput prompt_batch(
    const std::vector<std::vector<int64_t>>& prompts,
    int64_t padding,
    at::Device device) {
  size_t longest = 0;
  bool is_padded = false;
  for (const auto& prompt : prompts) {
    TESSERA_CHECK(!prompt.empty(), "prompt_batch: a prompt has no tokens");
    longest = std::max(longest, prompt.size());
    is_padded = is_padded || prompt.size() != prompts.front().size();
  }
  const auto rows = static_cast<int64_t>(prompts.size());
  const auto length = static_cast<int64_t>(longest);
  at::Tensor ids = torch::full({rows, length}, padding, torch::kLong);
  at::Tensor mask = torch::zeros({rows, length}, torch::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const auto& prompt = prompts[static_cast<size_t>(row)];
    const auto row_length = static_cast<int64_t>(prompt.size());
    ids[row]
        .narrow(0, length - row_length, row_length)
        .copy_(torch::tensor(prompt, torch::kLong));
    mask[row].narrow(0, length - row_length, row_length).fill_(1);
  }
  ModelInput batch;
  batch.input_ids = ids.to(device);
  if (is_padded) {
    batch.attention_mask = mask.to(device);
  }
  return batch;
}

} // namespace tessera::zoo
