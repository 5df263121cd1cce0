// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/vocab_range.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLossSetup = "setup";
// Number of elements of the rows that are processed at a time.
constexpr int64_t kBlockNumel = int64_t{1} << 20;

struct LossSetup : torch::CustomClassHolder {
  LossSetup(
      const sharding::DimSplit& vocab,
      int rank,
      const VocabParallelLossOptions& options)
      : vocab(vocab), rank(rank), options(options) {}

  sharding::DimSplit vocab;
  int rank; ///< of the group
  VocabParallelLossOptions options;
};

/// Calls `work` with ranges of rows [first, first + count).
template <typename Work>
void for_row_blocks(const at::Tensor& logits, const Work& work) {
  const int64_t rows = logits.size(0);
  const int64_t block =
      std::max<int64_t>(1, kBlockNumel / std::max<int64_t>(1, logits.size(1)));
  for (int64_t first = 0; first < rows; first += block) {
    work(first, std::min(block, rows - first));
  }
}

/// The sums from which the loss is computed, [tokens] each.
struct RowSums {
  at::Tensor lse;
  at::Tensor target_logit;
  at::Tensor logit_sum;
};

RowSums sums_over_ranks(
    const at::Tensor& logits,
    const sharding::LocalTokens& targets,
    const LossSetup& setup,
    Communicator& group) {
  const auto options =
      logits.options().dtype(at::toOpMathType(logits.scalar_type()));
  const at::Tensor self_tensor = at::zeros({3, logits.size(0)}, options);
  for_row_blocks(logits, [&](int64_t first, int64_t count) {
    const at::Tensor rows = logits.narrow(0, first, count).to(options.dtype());
    self_tensor[0].narrow(0, first, count).copy_(at::logsumexp(rows, 1));
    self_tensor[1]
        .narrow(0, first, count)
        .copy_(rows.gather(1, targets.rows.narrow(0, first, count).unsqueeze(1))
                   .squeeze(1));
    if (setup.options.label_smoothing != 0) {
      self_tensor[2].narrow(0, first, count).copy_(rows.sum(1));
    }
  });
  self_tensor[1].masked_fill_(targets.elsewhere, 0);
  const at::Tensor all = at::empty({group.size(), 3, logits.size(0)}, options);
  group
      .all_gather(
          all,
          self_tensor,
          "cross-entropy over the group '" + group.name() + "'")
      .wait();
  return {
      at::logsumexp(all.select(1, 0), 0),
      all.select(1, 1).sum(0),
      all.select(1, 2).sum(0)};
}

struct LossFunction : torch::autograd::Function<LossFunction> {
  /// @param logits [tokens, own vocabulary]; target [tokens].
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& target,
      const c10::intrusive_ptr<LossSetup>& setup,
      Communicator* group) {
    const auto& options = setup->options;
    const sharding::LocalTokens local =
        local_tokens(target, setup->vocab, setup->rank);
    const RowSums sums = sums_over_ranks(logits, local, *setup, *group);
    const double smooth = options.label_smoothing;
    at::Tensor loss = sums.lse - (1 - smooth) * sums.target_logit;
    if (smooth != 0) {
      loss -=
          smooth / static_cast<double>(setup->vocab.size()) * sums.logit_sum;
    }
    if (options.z_loss != 0) {
      loss += options.z_loss * sums.lse.square();
    }
    const at::Tensor ignored = target.eq(options.ignore_index);
    loss.masked_fill_(ignored, 0);
    // Weight of each token's loss in the result.
    at::Tensor weight = ignored.logical_not().to(loss.scalar_type());
    if (options.reduction == LossReduction::kMean) {
      weight /= weight.sum();
    }
    context->save_for_backward({logits, target, sums.lse, weight});
    context->saved_data[kLossSetup] = c10::IValue::make_capsule(setup);
    switch (options.reduction) {
      case LossReduction::kNone:
        return loss;
      case LossReduction::kSum:
        return loss.sum();
      default:
        // For no tokens this is 0 / 0.
        return loss.sum() / ignored.logical_not().sum();
    }
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    TESSERA_CHECK(
        !c10::GradMode::is_enabled(),
        "vocab_parallel_cross_entropy cannot be differentiated twice: call backward without create_graph.");
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor& target = saved[1];
    const at::Tensor& lse = saved[2];
    const auto setup = c10::static_intrusive_pointer_cast<LossSetup>(
        context->saved_data[kLossSetup].toCapsule());
    const double smooth = setup->options.label_smoothing;
    const double spread = smooth / static_cast<double>(setup->vocab.size());
    const sharding::LocalTokens local =
        local_tokens(target, setup->vocab, setup->rank);

    const at::Tensor scale = gradients[0] * saved[3];
    // Includes the derivative of the z loss.
    const at::Tensor softmax_scale =
        scale * (1 + 2 * setup->options.z_loss * lse);
    const at::Tensor target_part =
        (-(1 - smooth) * scale).masked_fill_(local.elsewhere, 0);
    const at::Tensor result = at::empty_like(logits);
    for_row_blocks(logits, [&](int64_t first, int64_t count) {
      const auto rows_of = [&](const at::Tensor& tokens) {
        return tokens.narrow(0, first, count).unsqueeze(1);
      };
      at::Tensor rows = logits.narrow(0, first, count).to(lse.scalar_type());
      rows = (rows - rows_of(lse)).exp_().mul_(rows_of(softmax_scale));
      if (smooth != 0) {
        rows.sub_(spread * rows_of(scale));
      }
      rows.scatter_add_(1, rows_of(local.rows), rows_of(target_part));
      result.narrow(0, first, count).copy_(rows);
    });
    return {result, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// Returns the token dimensions in memory order, so that logits need not be
/// copied.
std::vector<int64_t> memory_order(const at::Tensor& logits) {
  std::vector<int64_t> order(static_cast<size_t>(logits.dim() - 1));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits.stride(a) > logits.stride(b);
  });
  return order;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    result[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return result;
}

void check_arguments(
    const at::Tensor& logits,
    const at::Tensor& target,
    const LossSetup& setup,
    int ranks) {
  TESSERA_CHECK(
      logits.dim() >= 1 &&
          logits.sizes().slice(0, logits.dim() - 1) == target.sizes(),
      "vocab_parallel_cross_entropy: logits of sizes {} for targets of sizes {}; logits must have one more dimension, the last.",
      logits.sizes(),
      target.sizes());
  TESSERA_CHECK(
      setup.vocab.parts() == ranks &&
          logits.size(-1) == setup.vocab.length(setup.rank),
      "vocab_parallel_cross_entropy: {} logits for each token, but with a vocabulary of {} in {} parts, rank {} of {} should have {}.",
      logits.size(-1),
      setup.vocab.size(),
      setup.vocab.parts(),
      setup.rank,
      ranks,
      setup.vocab.length(std::min(setup.rank, setup.vocab.parts() - 1)));
  TESSERA_CHECK(
      setup.options.label_smoothing >= 0 && setup.options.label_smoothing <= 1,
      "vocab_parallel_cross_entropy: label_smoothing is {}; it must be from 0 to 1.",
      setup.options.label_smoothing);
}

} // namespace

at::Tensor vocab_parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const sharding::DimSplit& vocab,
    Communicator& group,
    const VocabParallelLossOptions& options) {
  const auto setup =
      c10::make_intrusive<LossSetup>(vocab, group.rank(), options);
  check_arguments(logits, target, *setup, group.size());
  sharding::check_tokens(
      target.masked_fill(target.eq(options.ignore_index), 0),
      vocab.size(),
      "vocab_parallel_cross_entropy");
  std::vector<int64_t> order = memory_order(logits);
  const at::Tensor ordered_target = target.permute(order);
  order.push_back(-1);
  const at::Tensor loss = LossFunction::apply(
      logits.permute(order).reshape({-1, logits.size(-1)}),
      ordered_target.reshape({-1}),
      setup,
      &group);
  if (options.reduction != LossReduction::kNone) {
    return loss;
  }
  order.pop_back();
  return loss.view(ordered_target.sizes()).permute(inverse(order));
}

} // namespace tessera
