// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/next_token.h"

#include "tessera/zoo/generation/score_rules.h"

#include <torch/types.h>

#include <vector>

namespace tessera::zoo {

namespace {

std::vector<uint64_t> streams_of_rows(
    const GenerateOptions& options,
    int64_t prompts,
    int64_t rows) {
  std::vector<uint64_t> streams;
  for (int64_t prompt = 0; prompt < prompts; ++prompt) {
    for (int64_t copy = 0; copy < rows; ++copy) {
      streams.push_back(
          RowDraws::stream_of(options.number_of_prompt(prompt), copy));
    }
  }
  return streams;
}

} // namespace

NextToken::NextToken(
    const GenerateOptions& options,
    int64_t prompts,
    int64_t rows)
    : options_(options),
      draws_(options.seed, streams_of_rows(options, prompts, rows)) {}

at::Tensor NextToken::choose(at::Tensor scores, int64_t written) const {
  if (!options_.do_sample) {
    return scores.argmax(1);
  }
  apply_sampling_rules(options_, scores);
  return draws_.draw(scores.softmax(1), 1, written).squeeze(1);
}

} // namespace tessera::zoo
