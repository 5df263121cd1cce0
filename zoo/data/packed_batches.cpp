// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/packed_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/data/token_batches.h"

#include <torch/types.h>

#include <span>
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
    const auto position = static_cast<int64_t>(i);
    if (static_cast<size_t>(document) < starts.size() &&
        starts[static_cast<size_t>(document)] == position) {
      ++document;
      begin = position;
    }
    document_ids[i] = document;
    position_ids[i] = position - begin;
  }
}

} // namespace

PackedBatches::PackedBatches(
    std::vector<std::shared_ptr<const DocumentStream>> sources,
    const std::vector<double>& weights,
    const PackedOptions& options,
    c10::Device device)
    : samples_(
          std::move(sources),
          weights,
          {options.length, /*shared=*/1, options.seed}),
      options_(options),
      device_(device) {}

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
    samples_.read(examples[i], epoch, row_of(ids, row), starts[i]);
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
