// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/beam_search.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/generation/score_rules.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

/// Below every possible score, but finite: adding it ranks a sequence last.
constexpr double kLast = -1e9;

/// Ranks the entries that are false in `keep` last.
at::Tensor only(const at::Tensor& scores, const at::Tensor& keep) {
  return scores + keep.logical_not().to(at::kFloat) * kLast;
}

/// The chosen entries of each prompt, [prompts, n, ...].
at::Tensor chosen(const at::Tensor& all, const at::Tensor& indices) {
  if (all.dim() == 2) {
    return all.gather(1, indices);
  }
  return all.gather(1, indices.unsqueeze(2).expand({-1, -1, all.size(2)}));
}

at::Tensor best_places(const at::Tensor& scores, int64_t count) {
  return std::get<1>(scores.topk(count, 1));
}

std::vector<uint64_t> streams_of_prompts(
    const GenerateOptions& options,
    int64_t prompts) {
  std::vector<uint64_t> streams;
  for (int64_t prompt = 0; prompt < prompts; ++prompt) {
    streams.push_back(RowDraws::stream_of(options.number_of_prompt(prompt), 0));
  }
  return streams;
}

} // namespace

BeamSearch::BeamSearch(
    const GenerateOptions& options,
    const at::Tensor& rows,
    const at::Tensor& padding,
    EndsSequence ends)
    : options_(options),
      ends_(std::move(ends)),
      texts_(rows.size(0) / options.num_beams),
      draws_(options.seed, streams_of_prompts(options, texts_)),
      given_(rows.size(1)),
      rows_(rows),
      padding_(padding) {
  const int64_t beams = options.num_beams;
  // All beams of a prompt are equal at first: only the first one is extended.
  scores_ = torch::full({texts_, beams}, kLast);
  scores_.select(1, 0).zero_();
  best_ = torch::full(
      {texts_, beams, given_ + options.max_new_tokens},
      options.pad_token_id,
      torch::kLong);
  best_lengths_ = torch::zeros({texts_, beams}, torch::kLong);
  best_scores_ = torch::full({texts_, beams}, kLast);
  is_ended_ = torch::zeros({texts_, beams}, torch::kBool);
  can_improve_ = torch::ones({texts_, 1}, torch::kBool);
}

int64_t BeamSearch::candidates() const {
  const auto ends = static_cast<int64_t>(options_.eos_token_id.size());
  return std::max<int64_t>(2, 1 + ends) * options_.num_beams;
}

TokenProposal BeamSearch::propose(const at::Tensor& logits) {
  at::Tensor scores = logits.to(at::kCPU, at::kFloat).log_softmax(1);
  TESSERA_CHECK(
      candidates() <= scores.size(1),
      "num_beams is {}, which needs {} candidate tokens; the vocabulary has {}",
      options_.num_beams,
      candidates(),
      scores.size(1));
  apply_score_rules(options_, scores, RowTexts(rows_, padding_), written());
  if (options_.do_sample) {
    apply_sampling_rules(options_, scores);
  }
  // All continuations of a prompt in one row: beam * vocabulary + token.
  const at::Tensor all =
      (scores.view({texts_, options_.num_beams, -1}) + scores_.unsqueeze(2))
          .flatten(1);
  const at::Tensor tokens =
      options_.do_sample ? draws_.draw(all.softmax(1), candidates(), written())
                         : best_places(all, candidates());
  const at::Tensor beam = tokens.div(scores.size(1), "floor");
  return {
      tokens.remainder(scores.size(1)) * options_.num_beams + beam,
      all.gather(1, tokens)};
}

TokenProposal BeamSearch::blank() const {
  return {
      torch::empty({texts_, candidates()}, torch::kLong),
      torch::empty({texts_, candidates()}, torch::kFloat)};
}

at::Tensor BeamSearch::ends(const at::Tensor& texts) const {
  const at::Tensor tokens = texts.select(2, -1);
  at::Tensor found = torch::full_like(
      tokens, written() + 1 >= options_.max_new_tokens, torch::kBool);
  for (const int64_t end : options_.eos_token_id) {
    found |= tokens.eq(end);
  }
  const at::Tensor full = texts.contiguous();
  for (int64_t text = 0; ends_ && text < texts_; ++text) {
    for (int64_t i = 0; i < full.size(1); ++i) {
      const int64_t* begin = full[text][i].const_data_ptr<int64_t>() + given_;
      if (!found[text][i].item<bool>() &&
          ends_(
              text * options_.num_beams,
              {begin, static_cast<size_t>(written() + 1)})) {
        found[text][i] = true;
      }
    }
  }
  return found;
}

at::Tensor BeamSearch::advance(const TokenProposal& proposal) {
  const int64_t beams = options_.num_beams;
  const at::Tensor tokens = proposal.tokens.div(beams, "floor");
  const at::Tensor beam = proposal.tokens.remainder(beams);
  const at::Tensor texts = at::cat(
      {chosen(rows_.view({texts_, beams, -1}), beam), tokens.unsqueeze(2)}, 2);
  const at::Tensor ended = ends(texts);

  const at::Tensor going_on = only(proposal.scores, ended.logical_not());
  const at::Tensor indices = best_places(going_on, beams);
  set_aside(texts, proposal.scores, ended);
  rows_ = chosen(texts, indices).flatten(0, 1);
  scores_ = chosen(going_on, indices);

  can_improve_ &= may_improve();
  is_done_ = !can_improve_.any().item<bool>() || ended.all().item<bool>() ||
             (options_.early_stopping == EarlyStopping::kYes &&
              is_ended_.all().item<bool>());
  const at::Tensor first_row = torch::arange(texts_).unsqueeze(1) * beams;
  return (chosen(beam, indices) + first_row).flatten();
}

void BeamSearch::set_aside(
    const at::Tensor& texts,
    const at::Tensor& scores,
    const at::Tensor& ended) {
  const int64_t beams = options_.num_beams;
  // Candidates after the first num_beams only serve to have enough unfinished
  // ones.
  const at::Tensor may = ended & torch::arange(ended.size(1)).lt(beams);
  const int64_t length = texts.size(2) - given_;
  at::Tensor final_scores = only(
      scores / std::pow(static_cast<double>(length), options_.length_penalty),
      may);
  if (options_.early_stopping == EarlyStopping::kYes) {
    final_scores = only(final_scores, is_ended_.all(1, true).logical_not());
  }
  final_scores = only(final_scores, can_improve_);
  const at::Tensor padded = at::constant_pad_nd(
      texts, {0, best_.size(2) - texts.size(2)}, options_.pad_token_id);
  const at::Tensor all_scores = at::cat({best_scores_, final_scores}, 1);
  const at::Tensor indices = best_places(all_scores, beams);
  best_ = chosen(at::cat({best_, padded}, 1), indices);
  best_lengths_ = chosen(
      at::cat(
          {best_lengths_, torch::full_like(scores, length, torch::kLong)}, 1),
      indices);
  best_scores_ = chosen(all_scores, indices);
  is_ended_ = chosen(at::cat({is_ended_, may}, 1), indices);
}

at::Tensor BeamSearch::may_improve() const {
  const bool grows = options_.early_stopping == EarlyStopping::kNever &&
                     options_.length_penalty > 0;
  const auto length =
      static_cast<double>(grows ? options_.max_new_tokens : written());
  const at::Tensor possible =
      scores_.narrow(1, 0, 1) / std::pow(length, options_.length_penalty);
  const at::Tensor worst = torch::where(
      is_ended_, best_scores_.amin(1, true), torch::full({1}, kLast));
  return possible.gt(worst).any(1, true);
}

at::Tensor BeamSearch::result() const {
  const int64_t count = options_.num_return_sequences;
  const int64_t longest =
      best_lengths_.narrow(1, 0, count).max().item<int64_t>();
  return best_.narrow(1, 0, count).flatten(0, 1).narrow(1, 0, given_ + longest);
}

} // namespace tessera::zoo
