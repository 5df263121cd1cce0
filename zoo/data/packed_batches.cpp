// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/packed_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/data/token_batches.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace tessera::zoo {

namespace {

/// Writes the number of the document and the place in it of each token.
void number_tokens(
    const std::vector<int64_t>& starts,
    std::span<int64_t> document_ids,
    std::span<int64_t> position_ids) {
  int64_t document = 0;
  int64_t begin = 0;
  for (size_t i = 0; i < document_ids.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    if (static_cast<size_t>(document) < starts.size() &&
        starts[static_cast<size_t>(document)] == place) {
      ++document;
      begin = place;
    }
    document_ids[i] = document;
    position_ids[i] = place - begin;
  }
}

} // namespace

PackedBatches::PackedBatches(
    std::vector<std::shared_ptr<const DocumentStream>> sources,
    const std::vector<double>& weights,
    const PackedOptions& options,
    c10::Device device)
    : options_(options), device_(device), is_blend_(!weights.empty()) {
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
        options_.length);
    sources_.push_back({std::move(stream), samples, samples, size_});
    size_ += samples;
  }
  if (is_blend_) {
    set_shares(weights);
  }
}

int64_t PackedBatches::samples_of(const DocumentStream& stream) const {
  return stream.tokens() < options_.length
             ? 0
             : (stream.tokens() - 1) / (options_.length - 1);
}

void PackedBatches::set_shares(const std::vector<double>& weights) {
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

size_t PackedBatches::size() const {
  return static_cast<size_t>(size_);
}

std::string PackedBatches::text() const {
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
      options_.length);
}

PackedBatches::Sample PackedBatches::sample(size_t example, int64_t epoch)
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
  const int64_t own_epoch = drawn / source.samples;
  const RandomOrder order(
      source.samples,
      mixed_bits(
          mixed_bits(options_.seed + i) + static_cast<uint64_t>(own_epoch)));
  return {i, own_epoch, order[drawn % source.samples]};
}

ModelInput PackedBatches::make(
    const std::vector<size_t>& examples,
    int64_t epoch,
    bool loss_only) const {
  const auto rows = static_cast<int64_t>(examples.size());
  const int64_t length = options_.length;
  at::Tensor ids = torch::empty({rows, length}, torch::kInt64);
  at::Tensor labels = ids;
  at::Tensor documents;
  at::Tensor positions;
  if (options_.separate_documents) {
    documents = torch::empty_like(ids);
    positions = torch::empty_like(ids);
  }
  const auto row_of = [&](at::Tensor& tensor, int64_t row) {
    return std::span<int64_t>(
        tensor.mutable_data_ptr<int64_t>() + row * length,
        static_cast<size_t>(length));
  };
  std::vector<std::vector<int64_t>> starts(examples.size());
  for (int64_t row = 0; row < rows; ++row) {
    const auto i = static_cast<size_t>(row);
    const Sample found = sample(examples[i], epoch);
    sources_[found.source].stream->read(
        found.epoch, found.index * (length - 1), row_of(ids, row), starts[i]);
    if (options_.separate_documents) {
      number_tokens(starts[i], row_of(documents, row), row_of(positions, row));
    }
  }
  if (options_.separate_documents) {
    // A token is predicted by those of its document before it.
    labels = ids.clone();
    labels.masked_fill_(positions.eq(0), -100);
  }
  ModelInput batch;
  batch.input_ids = runtime::to_device(ids, device_);
  batch.labels = options_.separate_documents
                     ? runtime::to_device(labels, device_)
                     : batch.input_ids;
  if (options_.separate_documents) {
    batch.position_ids = runtime::to_device(positions, device_);
    batch.others["document_ids"] = runtime::to_device(documents, device_);
  }
  batch.loss_only = loss_only;
  return batch;
}

TaskScore PackedBatches::report(const Score& score) const {
  return token_score(score);
}

} // namespace tessera::zoo
