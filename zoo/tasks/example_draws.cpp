// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/example_draws.h"

#include "tessera/runtime/core/option_fields.h"

#include "tessera/runtime/kernels/counter_random.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, TokenMaskOptions& options) {
  fields.field(
      runtime::required("mask_token"),
      options.mask_token,
      {.min = 0},
      "the token that masks");
  fields.field(
      "probability",
      options.probability,
      {.min = 0, .max = 1},
      "probability that a token is predicted");
  fields.field(
      "masked",
      options.masked,
      {.min = 0, .max = 1},
      "fraction of these that is replaced by the mask token");
  fields.field(
      "random",
      options.random,
      {.min = 0, .max = 1},
      "fraction of these that is replaced by a random token");
  fields.field(
      "never_masked",
      options.never_masked,
      {.min = 0},
      "tokens such as BERT's `[101, 102]`; padding (`attention_mask` 0) is never masked");
}

at::Tensor draws_of(
    std::span<const size_t> examples,
    int64_t epoch,
    uint64_t seed,
    int64_t each) {
  const at::Tensor draws =
      torch::empty({static_cast<int64_t>(examples.size()), each});
  for (size_t i = 0; i < examples.size(); ++i) {
    const std::string name = "epoch " + std::to_string(epoch) + ", example " +
                             std::to_string(examples[i]);
    fill_uniform(draws[static_cast<int64_t>(i)], {seed, stream_of(name)}, 0);
  }
  return draws;
}

MaskedTokens mask_tokens(
    const at::Tensor& ids,
    const at::Tensor& is_text,
    const at::Tensor& draws,
    int64_t vocab,
    const TokenMaskOptions& options) {
  const auto of_token = draws.view({ids.size(0), ids.size(1), 3}).unbind(-1);
  at::Tensor may =
      is_text.defined() ? is_text.ne(0) : torch::ones_like(ids, torch::kBool);
  for (const int64_t token : options.never_masked) {
    may = may.logical_and(ids.ne(token));
  }
  const at::Tensor chance =
      of_token[0].masked_fill(may.logical_not(), 2.0); // above all others
  const at::Tensor least = std::get<0>(chance.min(1, /*keepdim=*/true));
  const at::Tensor chosen = may.logical_and(
      chance.lt(options.probability).logical_or(chance.eq(least)));
  const at::Tensor& kind = of_token[1];
  const at::Tensor any = (of_token[2] * static_cast<double>(vocab))
                             .floor()
                             .clamp_max(static_cast<double>(vocab - 1))
                             .to(torch::kLong);
  at::Tensor masked = torch::where(
      chosen.logical_and(kind.lt(options.masked)),
      torch::full_like(ids, options.mask_token),
      ids);
  masked = torch::where(
      chosen.logical_and(kind.ge(options.masked))
          .logical_and(kind.lt(options.masked + options.random)),
      any,
      masked);
  return {masked, torch::where(chosen, ids, torch::full_like(ids, -100))};
}

at::Tensor mask_patches(const at::Tensor& draws, double share) {
  const int64_t patches = draws.size(1);
  const auto count = std::clamp<int64_t>(
      std::llround(share * static_cast<double>(patches)), 1, patches);
  const at::Tensor order = draws.argsort(int64_t{1});
  return torch::zeros_like(draws, torch::kBool)
      .scatter(1, order.narrow(1, 0, count), true);
}

} // namespace tessera::zoo
