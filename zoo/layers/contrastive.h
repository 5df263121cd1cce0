// SPDX-License-Identifier: Apache-2.0
#pragma once
// What learning by comparing two views of each image needs, over all ranks that
// see different images.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/zoo/layers/linear.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

struct ContrastiveHeadOptions {
  std::vector<int64_t> sizes; ///< of the input, between layers, of the output
  double eps = 1e-5;
  double deviation = 0.02; ///< of fresh weights
};

/// Linear layers without biases, a batch norm behind each and a ReLU between
/// them; the last norm has no weight and no bias. The norms always take the
/// statistics of the batch, of all ranks together: such a head is thrown away
/// after training, and keeps none of its own. Parameters `linear.N.weight`,
/// `norm.N.weight` and `norm.N.bias`, whole on every rank.
class ContrastiveHeadImpl : public torch::nn::Module {
 public:
  explicit ContrastiveHeadImpl(const ContrastiveHeadOptions& options);

  /// x [B, first size] -> [B, last size], float32 or better. Collective over
  /// `batches`, whose ranks have as many rows each, if it is not null: in
  /// backward too.
  at::Tensor forward(const at::Tensor& x, Communicator* batches);

 private:
  ContrastiveHeadOptions options_;
  std::vector<Linear> linears_;
  std::vector<at::Tensor> weights_, biases_; ///< of all norms but the last
};
TORCH_MODULE(ContrastiveHead);

/// The mean cross-entropy of queries [B, n] finding their own keys [B, n] among
/// those of all ranks, times 2 temperature (arXiv:2104.02057, algorithm 1).
/// Both of length 1; keys get no gradient. Collective over `batches`, whose
/// ranks have as many rows each, if it is not null; not in backward. The loss
/// is that of this rank's queries.
at::Tensor contrastive_loss(
    const at::Tensor& queries,
    const at::Tensor& keys,
    double temperature,
    Communicator* batches);

} // namespace tessera::zoo
