// SPDX-License-Identifier: Apache-2.0
#pragma once
// Heads and loss of contrastive learning, over all ranks with different images.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/zoo/layers/linear.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

struct ContrastiveHeadOptions {
  std::vector<int64_t> sizes; ///< of input, hidden layers and output
  double eps = 1e-5;
  double deviation = 0.02; ///< standard deviation of initial weights
};

/// An MLP: linear layers without biases, each followed by a batch norm, with
/// ReLU in between; the last norm has no weight and no bias. The norms always
/// use the statistics of the batch, over all ranks, and keep no running
/// statistics, because such a head is discarded after training. Parameters
/// `linear.N.weight`, `norm.N.weight` and `norm.N.bias`, whole on every rank.
class ContrastiveHeadImpl : public torch::nn::Module {
 public:
  explicit ContrastiveHeadImpl(const ContrastiveHeadOptions& options);

  /// x [B, first size] -> [B, last size], float32 or better. Collective over
  /// `batches` if it is not null, in backward too; its ranks must have the same
  /// number of rows.
  at::Tensor forward(const at::Tensor& x, Communicator* batches);

 private:
  ContrastiveHeadOptions options_;
  std::vector<Linear> linears_;
  std::vector<at::Tensor> weights_, biases_; ///< of all norms except the last
};
TORCH_MODULE(ContrastiveHead);

/// The mean cross-entropy of matching queries [B, n] to their own keys [B, n]
/// among those of all ranks, times 2 temperature (arXiv:2104.02057, algorithm
/// 1). Both must be normalized to length 1; keys get no gradient. Collective
/// over `batches` if it is not null, but not in backward; its ranks must have
/// the same number of rows. Returns the loss of this rank's queries.
at::Tensor contrastive_loss(
    const at::Tensor& queries,
    const at::Tensor& keys,
    double temperature,
    Communicator* batches);

} // namespace tessera::zoo
