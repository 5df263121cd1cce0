// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/expert_parallel/expert_exchange.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/pending_transfer.h"
#include "tessera/sharding/collectives/exchange_operations.h"
#include "tessera/sharding/collectives/linear_function.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <string>
#include <vector>

namespace tessera::sharding {

namespace {

at::Tensor with_gradient_times(const at::Tensor& x, double factor) {
  return apply_linear(
      x,
      [](const at::Tensor& tensor) { return tensor; },
      [factor](const at::Tensor& gradient) { return gradient * factor; });
}

/// The choices of all tokens, numbered token * k + choice.
struct Choices {
  at::Tensor order; ///< int64: their numbers by expert, dropped ones last
  at::Tensor counts; ///< int64 [experts]: number of kept choices per expert
};

Choices by_expert(const ExpertRouting& routing, int64_t experts) {
  at::Tensor expert = routing.experts.flatten();
  if (routing.kept.defined()) {
    // Sort them after all others.
    expert = expert.masked_fill(~routing.kept.flatten(), experts);
  }
  return {
      std::get<1>(
          at::sort(expert, /*stable=*/true, /*dim=*/0, /*descending=*/false)),
      count_choices(expert, experts + 1).narrow(0, 0, experts)};
}

/// How many rows this rank has for each expert, and how many it gets.
struct Traffic {
  /// int64 [ranks, experts of a rank]: by rank that the rows come from.
  at::Tensor taken;
  at::Tensor sent_on_host; ///< [ranks, experts of a rank]: by destination
  at::Tensor taken_on_host;
};

/// The only wait of the host for the device.
/// @param group null: all rows stay here.
Traffic traffic_of(const at::Tensor& counts, Communicator* group) {
  const at::Tensor sent =
      counts.view({group == nullptr ? 1 : group->size(), -1});
  at::Tensor taken = sent;
  if (group != nullptr) {
    taken = at::empty_like(sent);
    group
        ->all_to_all(
            taken, sent, "how many tokens go where in '" + group->name() + "'")
        .wait();
  }
  const at::Tensor both = at::stack({sent, taken});
  const at::Tensor host = at::empty(
      both.sizes(),
      both.options().device(at::kCPU).pinned_memory(!both.is_cpu()));
  runtime::begin_copy(host, both).wait();
  return {taken, host[0], host[1]};
}

std::vector<int64_t> numbers_in(const at::Tensor& host) {
  const at::Tensor numbers = host.contiguous();
  const auto* begin = numbers.const_data_ptr<int64_t>();
  return {begin, begin + numbers.numel()};
}

/// Applies the experts of this rank one after another.
/// @param counts number of rows of each.
/// @param skips_empty those without rows are not called.
at::Tensor apply_in_turn(
    const at::Tensor& rows,
    const std::vector<int64_t>& counts,
    bool skips_empty,
    const ExpertFunction& expert) {
  const std::vector<at::Tensor> inputs = rows.split_with_sizes(counts);
  std::vector<at::Tensor> results;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0 || !skips_empty) {
      results.push_back(expert(static_cast<int64_t>(e), inputs[e]));
    }
  }
  return results.empty() ? rows : at::cat(results);
}

/// Sends rows to the ranks that have their experts, and returns the results.
at::Tensor apply_elsewhere(
    const at::Tensor& rows,
    const Traffic& traffic,
    Communicator& group,
    const ExpertFunction& expert) {
  const RowCounts there{
      numbers_in(traffic.sent_on_host.sum(1)),
      numbers_in(traffic.taken_on_host.sum(1))};
  const at::Tensor arrived = all_to_all_rows(rows, there, group);

  // Rows arrive by rank, then by expert: their experts, found by their places.
  const at::Tensor ends = traffic.taken.flatten().cumsum(0);
  const at::Tensor expert_of_row =
      at::searchsorted(
          ends,
          at::arange(arrived.size(0), ends.options()),
          /*out_int32=*/false,
          /*right=*/true)
          .remainder(traffic.taken.size(1));
  const auto [sorted, order] =
      at::sort(expert_of_row, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto size = static_cast<double>(group.size());
  const at::Tensor inputs =
      with_gradient_times(arrived.index_select(0, order), size);
  const at::Tensor results = with_gradient_times(
      apply_in_turn(
          inputs,
          numbers_in(traffic.taken_on_host.sum(0)),
          /*skips_empty=*/false,
          expert),
      1 / size);
  const at::Tensor by_rank =
      at::zeros_like(results).index_copy(0, order, results);
  return all_to_all_rows(by_rank, {there.taken, there.sent}, group);
}

} // namespace

ExpertRange local_experts(int64_t experts, int rank, int ranks) {
  TESSERA_CHECK(
      experts % ranks == 0,
      "{} experts are not divisible by {} expert-parallel ranks; possible expert sizes: {}.",
      experts,
      ranks,
      divisors_of(experts));
  return {rank * (experts / ranks), experts / ranks};
}

at::Tensor apply_experts(
    const at::Tensor& tokens,
    const ExpertRouting& routing,
    int64_t experts,
    Communicator* group,
    const ExpertFunction& expert) {
  TESSERA_CHECK(
      tokens.dim() == 2 && routing.experts.dim() == 2 &&
          routing.experts.size(0) == tokens.size(0) &&
          routing.weights.sizes() == routing.experts.sizes(),
      "apply_experts: tokens of sizes {}, and a routing with experts of sizes {} and weights of sizes {}; expected [tokens, features] and [tokens, experts per token]",
      tokens.sizes(),
      routing.experts.sizes(),
      routing.weights.sizes());
  if (group != nullptr) {
    local_experts(experts, group->rank(), group->size());
  }
  const int64_t choices = routing.experts.size(1);
  const Choices chosen = by_expert(routing, experts);
  const Traffic traffic = traffic_of(chosen.counts, group);
  const auto kept = traffic.sent_on_host.sum().item<int64_t>();
  const at::Tensor order = chosen.order.narrow(0, 0, kept);
  // A copy per choice, so that gradients are summed in a fixed order.
  const at::Tensor rows = tokens.unsqueeze(1)
                              .expand({-1, choices, -1})
                              .flatten(0, 1)
                              .index_select(0, order);
  const at::Tensor results =
      group != nullptr ? apply_elsewhere(rows, traffic, *group, expert)
                       : apply_in_turn(
                             rows,
                             numbers_in(traffic.sent_on_host),
                             /*skips_empty=*/!at::GradMode::is_enabled(),
                             expert);
  const at::Tensor by_choice =
      at::zeros({tokens.size(0) * choices, tokens.size(1)}, results.options())
          .index_copy(0, order, results)
          .view({tokens.size(0), choices, tokens.size(1)});
  return routing.weights.to(results.scalar_type())
      .unsqueeze(1)
      .matmul(by_choice)
      .squeeze(1);
}

} // namespace tessera::sharding
