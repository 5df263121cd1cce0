// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/example_draws.h"

#include "tessera/runtime/core/option_fields.h"

#include "tessera/runtime/random/counter_random.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, TokenMaskOptions& options) {
  fields.field(
      runtime::required("mask_token"),
      options.mask_token,
      {.min = 0},
      "the token that masks");
  visit_rates(fields, options);
  fields.field(
      "never_masked",
      options.never_masked,
      {.min = 0},
      "tokens such as BERT's `[101, 102]`; padding (`attention_mask` 0) is never masked");
}

void visit_rates(runtime::OptionFields& fields, TokenMaskOptions& options) {
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
}

namespace {

RandomStream stream_of_example(size_t example, int64_t epoch, uint64_t seed) {
  return {
      seed,
      stream_of(
          "epoch " + std::to_string(epoch) + ", example " +
          std::to_string(example))};
}

} // namespace

at::Tensor draws_of(
    std::span<const size_t> examples,
    int64_t epoch,
    uint64_t seed,
    int64_t each) {
  const at::Tensor draws =
      torch::empty({static_cast<int64_t>(examples.size()), each});
  for (size_t i = 0; i < examples.size(); ++i) {
    fill_uniform(
        draws[static_cast<int64_t>(i)],
        stream_of_example(examples[i], epoch, seed),
        0);
  }
  return draws;
}

Uniforms uniforms_of(
    size_t example,
    int64_t epoch,
    uint64_t seed,
    int64_t first) {
  struct Numbers {
    RandomStream stream;
    int64_t next;
    at::Tensor buffer = torch::empty({64});
    int64_t offset = 64; ///< in the buffer

    double take() {
      if (offset == buffer.numel()) {
        fill_uniform(buffer, stream, next);
        next += buffer.numel();
        offset = 0;
      }
      return buffer.const_data_ptr<float>()[offset++];
    }
  };
  const auto numbers = std::make_shared<Numbers>(
      Numbers{stream_of_example(example, epoch, seed), first});
  return [numbers] { return numbers->take(); };
}

int64_t below(const Uniforms& draws, int64_t count) {
  return std::min(
      static_cast<int64_t>(draws() * static_cast<double>(count)), count - 1);
}

MaskedTokens mask_tokens(
    const at::Tensor& ids,
    const at::Tensor& is_text,
    const at::Tensor& draws,
    int64_t vocab,
    const TokenMaskOptions& options,
    const at::Tensor& words) {
  const auto of_token = draws.view({ids.size(0), ids.size(1), 3}).unbind(-1);
  at::Tensor may =
      is_text.defined() ? is_text.ne(0) : torch::ones_like(ids, torch::kBool);
  for (const int64_t token : options.never_masked) {
    may = may.logical_and(ids.ne(token));
  }
  const at::Tensor of_word =
      words.defined() ? of_token[0].gather(1, words) : of_token[0];
  const at::Tensor chance =
      of_word.masked_fill(may.logical_not(), 2.0); // above all others
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
