// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/packed_samples.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/data/random_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace tessera::zoo {

PackedSamples::PackedSamples(
    std::vector<std::shared_ptr<const DocumentStream>> sources,
    const std::vector<double>& weights,
    const SampleCut& cut)
    : cut_(cut), is_blend_(!weights.empty()) {
  TESSERA_CHECK(
      weights.empty() || weights.size() == sources.size(),
      "{} weights are given for {} sources of tokens",
      weights.size(),
      sources.size());
  for (auto& stream : sources) {
    const int64_t samples = samples_of(*stream);
    TESSERA_CHECK(
        samples > 0,
        "'{}' has {} tokens in {} documents, fewer than one sequence of model.max_length, {}; only complete sequences count",
        stream->data().file().path().string(),
        stream->tokens(),
        stream->documents(),
        cut_.length);
    sources_.push_back({std::move(stream), samples, samples, size_});
    size_ += samples;
  }
  if (is_blend_) {
    set_shares(weights);
  }
}

int64_t PackedSamples::samples_of(const DocumentStream& stream) const {
  return stream.tokens() < cut_.length
             ? 0
             : (stream.tokens() - cut_.shared) / (cut_.length - cut_.shared);
}

void PackedSamples::set_shares(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double until = 0;
  int64_t begin = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    until += weights[i];
    const auto end =
        i + 1 == sources_.size()
            ? size_
            : static_cast<int64_t>(std::llround(
                  static_cast<double>(size_) * std::min(1.0, until / sum)));
    sources_[i].begin = begin;
    sources_[i].share = end - begin;
    TESSERA_CHECK(
        end > begin,
        "'{}': its weight, {} of {}, gives it none of the {} samples of an epoch; raise it, or leave the file out",
        sources_[i].stream->data().file().path().string(),
        weights[i],
        sum,
        size_);
    begin = end;
  }
}

std::string PackedSamples::text() const {
  int64_t tokens = 0;
  int64_t documents = 0;
  for (const Source& source : sources_) {
    tokens += source.stream->tokens();
    documents += source.stream->documents();
  }
  return formatted(
      "{} tokens of {} documents{} in sequences of {}",
      tokens,
      documents,
      sources_.size() > 1 ? formatted(" in {} files", sources_.size()) : "",
      cut_.length);
}

int64_t PackedSamples::left_out_tokens() const {
  int64_t count = 0;
  for (const Source& source : sources_) {
    count += source.stream->tokens() - cut_.shared -
             source.samples * (cut_.length - cut_.shared);
  }
  return count;
}

PackedSamples::Sample PackedSamples::sample(size_t example, int64_t epoch)
    const {
  const auto at = static_cast<int64_t>(example);
  const bool is_scored = epoch == kScoredEpoch;
  size_t i = 0;
  if (!is_blend_ || is_scored) {
    int64_t begin = 0;
    for (; at - begin >= sources_[i].samples; ++i) {
      begin += sources_[i].samples;
    }
    return {i, is_scored ? DocumentStream::kFileOrder : epoch, at - begin};
  }
  while (at >= sources_[i].begin + sources_[i].share) {
    ++i;
  }
  const Source& source = sources_[i];
  const int64_t drawn = epoch * source.share + at - source.begin;
  const int64_t source_epoch = drawn / source.samples;
  const RandomOrder order(
      source.samples,
      runtime::split_mix(
          runtime::split_mix(cut_.seed + i) +
          static_cast<uint64_t>(source_epoch)));
  return {i, source_epoch, order[drawn % source.samples]};
}

void PackedSamples::read(
    size_t example,
    int64_t epoch,
    std::span<int64_t> tokens,
    std::vector<int64_t>& starts) const {
  const Sample found = sample(example, epoch);
  sources_[found.source].stream->read(
      found.epoch, found.index * (cut_.length - cut_.shared), tokens, starts);
}

} // namespace tessera::zoo
