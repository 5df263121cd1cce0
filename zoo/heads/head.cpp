// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/head.h"

#include <torch/types.h>

namespace tessera::zoo {

bool Head::has_labels(const NamedTensors& batch) const {
  const at::Tensor labels = find(batch, "labels");
  return !labels.defined() || labels.is_floating_point() ||
         labels.ne(-100).any().item<bool>();
}

void Head::add_score(const ScoredBatch& batch, ScoreSums& sums) const {
  sums.add_loss(batch, batch.rows());
}

at::Tensor find(const NamedTensors& batch, const std::string& name) {
  const auto found = batch.find(name);
  return found == batch.end() ? at::Tensor() : found->second;
}

} // namespace tessera::zoo
