// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/vocab_parallel_softmax.h"

#include "tessera/runtime/kernels/softmax_part.h"
#include "tessera/sharding/tensor_parallel/vocab_range.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>

namespace tessera::sharding {

void vocab_parallel_softmax_loss_(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    const DimSplit& vocab,
    Communicator& group,
    const runtime::SoftmaxLossOptions& options,
    bool gradients,
    bool fused) {
  const int rank = group.rank();
  const at::Tensor ignored = targets.eq(options.ignore_index);
  const at::Tensor counted = targets.masked_fill(ignored, 0);
  const LocalTokens local = local_tokens(counted, vocab, rank);
  const at::Tensor& weights = options.class_weights;
  const runtime::SoftmaxPart part{
      .logits = logits,
      .targets =
          local.rows.masked_fill(local.elsewhere, runtime::kClassElsewhere)
              .masked_fill_(ignored, runtime::kIgnoredRow),
      .class_weights =
          weights.defined()
              ? weights.narrow(0, vocab.begin(rank), vocab.length(rank))
              : weights,
      .classes = vocab.length(rank)};
  const double smooth = options.label_smoothing;
  const at::Tensor sums = at::empty({logits.size(0), 4}, losses.options());
  softmax_part_sums(part, sums, smooth > 0, fused);
  const at::Tensor all =
      at::empty({group.size(), logits.size(0), 4}, losses.options());
  group
      .all_gather(
          all, sums, "cross-entropy over the group '" + group.name() + "'")
      .wait();
  const at::Tensor max = all.select(2, 0).amax(0);
  const at::Tensor factors_of_ranks = (all.select(2, 0) - max).exp_();
  const at::Tensor sum = (all.select(2, 1) * factors_of_ranks).sum(0);
  const at::Tensor log_sum = sum.log();
  const at::Tensor lse = max + log_sum;
  const at::Tensor target_weight = weights.defined()
                                       ? weights.index_select(0, counted)
                                       : at::ones_like(losses);
  const at::Tensor keep = target_weight * (1 - smooth);
  // In this order: the sum of a large maximum and log_sum would be rounded.
  at::Tensor loss = keep * ((max - all.select(2, 3).sum(0)) + log_sum);
  at::Tensor factor = keep;
  double spread = 0;
  if (smooth > 0) {
    spread = smooth / static_cast<double>(vocab.size());
    const at::Tensor weight_sum =
        weights.defined()
            ? weights.sum()
            : at::full({}, static_cast<double>(vocab.size()), losses.options());
    loss = loss + (lse * weight_sum - all.select(2, 2).sum(0)) * spread;
    factor = factor + weight_sum * spread;
  }
  if (options.z_loss != 0) {
    const at::Tensor z_loss = target_weight * options.z_loss;
    loss = loss + z_loss * lse.square();
    factor = factor + 2 * z_loss * lse;
  }
  losses.copy_(loss.masked_fill(ignored, 0));
  if (!gradients) {
    return;
  }
  softmax_part_gradient_(
      part,
      at::stack(
          {sums.select(1, 0),
           factors_of_ranks[rank] / sum * factor * scale,
           at::full_like(losses, spread) * scale,
           keep * scale},
          1),
      fused);
}

} // namespace tessera::sharding
