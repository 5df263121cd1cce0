// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/input_checks.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>
#include <string>

namespace tessera::zoo {

void check_ids(const char* name, const at::Tensor& ids, int64_t bound) {
  TESSERA_CHECK(ids.defined(), "{} is missing; the model needs it", name);
  TESSERA_CHECK(
      ids.dim() == 2 && ids.numel() > 0 &&
          (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
      "{} is {}{}; it must be [batch, sequence] of int64 or int32, and not empty",
      name,
      ids.toString(),
      ids.sizes());
  if (!ids.is_cpu()) {
    return;
  }
  const auto [least, greatest] = at::aminmax(ids);
  const auto low = least.item<int64_t>();
  const auto high = greatest.item<int64_t>();
  TESSERA_CHECK(
      low >= 0 && high < bound,
      "{} holds {}, outside 0 .. {}; was the text encoded with this model's tokenizer?",
      name,
      (low < 0 ? low : high),
      bound - 1);
}

void check_same_shape(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& ids) {
  TESSERA_CHECK(
      !tensor.defined() || tensor.sizes() == ids.sizes(),
      "{} is {}, but the tokens are {}; they must have the same shape",
      name,
      tensor.sizes(),
      ids.sizes());
}

int64_t past_tokens(const ModelInput& input) {
  return input.cache == nullptr ? 0 : input.cache->length();
}

void check_mask(
    const char* name,
    const at::Tensor& mask,
    int64_t rows,
    int64_t tokens) {
  const std::array<int64_t, 2> expected{rows, tokens};
  TESSERA_CHECK(
      !mask.defined() || mask.sizes() == at::IntArrayRef(expected),
      "{} is {}, but the tokens are {}; they must have the same shape",
      name,
      mask.sizes(),
      at::IntArrayRef(expected));
}

void check_not_taken(
    const ModelInput& input,
    std::span<const std::string_view> taken) {
  for (const auto& [name, tensor] : input.named()) {
    const bool is_taken =
        std::find(taken.begin(), taken.end(), name) != taken.end();
    if (is_taken) {
      continue;
    }
    std::string list;
    for (const std::string_view one : taken) {
      list += (list.empty() ? "" : ", ") + std::string(one);
    }
    TESSERA_FAIL("the model does not take '{}'; it takes {}", name, list);
  }
}

} // namespace tessera::zoo
