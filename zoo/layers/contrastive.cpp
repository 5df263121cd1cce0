// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/contrastive.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/zoo/layers/losses.h"

#include <torch/types.h>

#include <string>

namespace tessera::zoo {

namespace {

/// Float32 or better: 16 bits are too coarse for batch statistics.
at::Tensor widened(const at::Tensor& x) {
  return x.to(at::promote_types(x.scalar_type(), at::kFloat));
}

/// The mean over all ranks' rows: [n]. Every rank's loss depends on it, so its
/// gradient is summed over the ranks.
at::Tensor mean_of_rows(const at::Tensor& x, Communicator* batches) {
  if (batches == nullptr) {
    return x.mean(0);
  }
  return sharding::copy_to_group(
             sharding::reduce_over_group(x.mean(0), *batches), *batches) /
         batches->size();
}

at::Tensor batch_normalised(
    const at::Tensor& x,
    double eps,
    Communicator* batches) {
  const at::Tensor centred = x - mean_of_rows(x, batches);
  return centred * (mean_of_rows(centred.square(), batches) + eps).rsqrt();
}

} // namespace

ContrastiveHeadImpl::ContrastiveHeadImpl(const ContrastiveHeadOptions& options)
    : options_(options) {
  const std::vector<int64_t>& sizes = options.sizes;
  TESSERA_CHECK(
      sizes.size() >= 2,
      "ContrastiveHead: got {} sizes; it needs at least the input and output sizes",
      sizes.size());
  const auto list = [&](const char* name) {
    return register_module(name, std::make_shared<torch::nn::Module>(name));
  };
  const auto linears = list("linear");
  const auto norms = list("norm");
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const std::string number = std::to_string(i);
    linears_.push_back(Linear::column(
        *linears,
        number,
        LayerContext(),
        {sizes[i], sizes[i + 1], false, 1, options.deviation}));
    if (i + 2 == sizes.size()) {
      break;
    }
    const auto norm = norms->register_module(
        number, std::make_shared<torch::nn::Module>("BatchNorm"));
    weights_.push_back(
        norm->register_parameter("weight", torch::ones({sizes[i + 1]})));
    biases_.push_back(
        norm->register_parameter("bias", torch::zeros({sizes[i + 1]})));
  }
}

at::Tensor ContrastiveHeadImpl::forward(
    const at::Tensor& x,
    Communicator* batches) {
  at::Tensor y = x;
  for (size_t i = 0; i < linears_.size(); ++i) {
    const at::Tensor narrow = y.to(linears_[i].weight().scalar_type());
    y = batch_normalised(
        widened(linears_[i].forward(narrow)), options_.eps, batches);
    if (i < weights_.size()) {
      y = at::relu(y * weights_[i] + biases_[i]);
    }
  }
  return y;
}

at::Tensor contrastive_loss(
    const at::Tensor& queries,
    const at::Tensor& keys,
    double temperature,
    Communicator* batches) {
  at::Tensor all = keys.detach();
  const int64_t rows = queries.size(0);
  int64_t first = 0;
  if (batches != nullptr) {
    all = gather_parts(
        all,
        0,
        sharding::DimSplit(rows * batches->size(), batches->size()),
        *batches);
    first = rows * batches->rank();
  }
  const at::Tensor self_keys =
      torch::arange(first, first + rows, keys.options().dtype(at::kLong));
  return cross_entropy(queries.mm(all.t()) / temperature, self_keys) *
         (2 * temperature);
}

} // namespace tessera::zoo
