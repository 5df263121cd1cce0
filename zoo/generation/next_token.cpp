// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/next_token.h"

#include "tessera/zoo/generation/score_rules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

namespace tessera::zoo {

NextToken::NextToken(const GenerateOptions& options)
    : options_(options),
      generator_(at::detail::createCPUGenerator(options.seed)) {}

at::Tensor NextToken::choose(at::Tensor scores) {
  if (!options_.do_sample) {
    return scores.argmax(1);
  }
  apply_sampling_rules(options_, scores);
  return torch::multinomial(
             scores.softmax(1), 1, /*replacement=*/false, generator_)
      .squeeze(1);
}

} // namespace tessera::zoo
