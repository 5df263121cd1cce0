// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/gradient_norm.h"

#include "tessera/runtime/dry_run/engine_reads.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace tessera::sharding {

namespace {

/// Returns this rank's parts of a group's gradients, in `shard`.
std::vector<at::Tensor> segments_with_gradient(
    const GradientBucket& bucket,
    const at::Tensor& shard) {
  std::vector<at::Tensor> segments;
  for (const runtime::FlatSegment& segment : bucket.local_segments()) {
    if (bucket.has_gradient(segment.parameter)) {
      segments.push_back(shard.narrow(0, segment.shard_offset, segment.numel));
    }
  }
  return segments;
}

/// A maximum over the ranks may drop a NaN: [value without it, 1 if it was
/// one].
at::Tensor with_nan_flag(const at::Tensor& value) {
  return at::cat(
      {value.nan_to_num(0, INFINITY), value.isnan().to(at::kDouble)});
}

/// The value of with_nan_flag(): [].
at::Tensor without_nan_flag(const at::Tensor& flagged) {
  return at::where(flagged[1] > 0, std::nan(""), flagged[0]);
}

int replicas_of(const PageSpec& page) {
  return page.mesh.size(kReplicateAxis);
}

bool has_gradients(const Page& page) {
  return page.gradients && page.gradients->any_gradient();
}

/// As PagedParameter::counts.
bool counts(const Page& page, const runtime::FlatSegment& segment) {
  return page.parameters()[segment.parameter].counts;
}

} // namespace

std::function<void()> GradientSums::begin(const Page& page, double p) {
  const GradientBucket& bucket = *page.gradients;
  auto group = std::make_shared<Group>();
  group->p = p;
  std::vector<runtime::FlatSpan> segments;
  for (const runtime::FlatSegment& segment : bucket.local_segments()) {
    group->has.push_back(bucket.has_gradient(segment.parameter));
    if (group->has.back()) {
      segments.push_back({segment.shard_offset, segment.numel});
    }
  }
  known_[static_cast<size_t>(page.number())] = group;
  return [group, segments = std::move(segments), resting = bucket.shard()] {
    if (segments.empty()) {
      return;
    }
    const at::Tensor shard = resting.load();
    std::vector<at::Tensor> values;
    for (const runtime::FlatSpan& segment : segments) {
      values.push_back(shard.narrow(0, segment.begin, segment.numel));
    }
    group->sums = runtime::PowerSums(values, group->p);
  };
}

bool GradientSums::knows_all(const PageTable& pages, double p) const {
  return std::all_of(pages.begin(), pages.end(), [&](const auto& page) {
    return !has_gradients(*page) || knows(*page, p);
  });
}

bool GradientSums::knows(const Page& page, double p) const {
  const GradientBucket& bucket = *page.gradients;
  const Group* group = known(page).get();
  if (group == nullptr || group->p != p) {
    return false;
  }
  for (size_t i = 0; i < bucket.local_segments().size(); ++i) {
    if (bucket.has_gradient(bucket.local_segments()[i].parameter) &&
        !group->has[i]) {
      return false;
    }
  }
  return true;
}

std::vector<GradientSums::Sum> GradientSums::all(
    const PageTable& pages,
    double p) {
  std::vector<const runtime::PowerSums*> pending;
  std::vector<const Page*> summed;
  for (const auto& page : pages) {
    if (!has_gradients(*page)) {
      continue;
    }
    if (!knows(*page, p)) {
      begin(*page, p)();
    }
    pending.push_back(&known(*page)->sums);
    summed.push_back(page.get());
  }
  std::vector<Sum> all;
  const std::vector<std::vector<double>> sums =
      runtime::PowerSums::wait(pending);
  for (size_t k = 0; k < summed.size(); ++k) {
    const Page& page = *summed[k];
    const GradientBucket& bucket = *page.gradients;
    const Group& group = *known(page);
    size_t next = 0;
    for (size_t i = 0; i < bucket.local_segments().size(); ++i) {
      const runtime::FlatSegment& segment = bucket.local_segments()[i];
      const size_t position = next;
      next += group.has[i] ? 1 : 0;
      if (bucket.has_gradient(segment.parameter)) {
        all.push_back(
            {sums[k][position],
             bucket.factor(),
             counts(page, segment),
             page.spec(),
             page.parameters()[segment.parameter].index});
      }
    }
  }
  return all;
}

std::vector<at::Tensor> GradientSums::norms_that_count(
    const Page& page,
    double p) {
  const GradientBucket& bucket = *page.gradients;
  begin(page, p)();
  const Group& group = *known(page);
  const at::Tensor& all = group.sums.norms_on_device();
  std::vector<at::Tensor> norms;
  int64_t first = 0; // of consecutive ones that count
  int64_t next = 0;
  const auto close = [&] {
    if (next > first) {
      const at::Tensor some = all.narrow(0, first, next - first);
      const double factor = bucket.factor();
      norms.push_back(factor == 1 ? some : some * factor);
    }
  };
  for (size_t i = 0; i < bucket.local_segments().size(); ++i) {
    if (!group.has[i]) {
      continue;
    }
    if (!counts(page, bucket.local_segments()[i])) {
      close();
      first = next + 1;
    }
    ++next;
  }
  close();
  return norms;
}

at::Tensor GradientSums::total_on_device(
    const Pager& pager,
    const MeshRanks& mesh,
    double p) {
  std::vector<at::Tensor> norms;
  for (const auto& page : pager.pages()) {
    if (!has_gradients(*page) ||
        &pager.ranks().of_sums(page->spec()) != &mesh) {
      continue;
    }
    for (const at::Tensor& some : norms_that_count(*page, p)) {
      norms.push_back(some);
    }
  }
  if (norms.empty()) {
    return at::zeros(
        {1}, at::TensorOptions(pager.pages()[0].device()).dtype(at::kDouble));
  }
  const at::Tensor all = at::cat(norms);
  return std::isinf(p) ? all.amax(0, /*keepdim=*/true)
                       : all.pow_(p).sum(0, /*keepdim=*/true);
}

double gradient_norm(Pager& pager, GradientSums& sums, double p) {
  const runtime::EngineReads reads;
  const bool largest = std::isinf(p);
  // Of pages by their number of replicas: the ranks add up all replicas, as
  // well as all experts. Every rank has the same numbers.
  std::map<int, double> local_sums;
  for (const auto& page : pager.pages()) {
    local_sums[replicas_of(page->spec())] = 0;
  }
  double maximum = 0;
  for (const auto& [sum, factor, counts, page, parameter] :
       sums.all(pager.pages(), p)) {
    if (!counts) {
      continue;
    }
    if (!largest) {
      local_sums[replicas_of(page)] += sum * std::pow(factor, p);
    } else if (!std::isnan(maximum) && !(sum * factor <= maximum)) {
      maximum = sum * factor; // NaN too
    }
  }
  if (largest) {
    const at::Tensor total = at::tensor({maximum}, at::kDouble);
    // A maximum over the ranks may drop a NaN.
    const at::Tensor bad =
        at::tensor({std::isnan(maximum) ? 1.0 : 0.0}, at::kDouble);
    for (const at::Tensor& value : {bad, total}) {
      pager.max_over_ranks(value);
      pager.ranks().max_over_parts(value);
    }
    return bad.item<double>() > 0 ? std::nan("") : total.item<double>();
  }
  std::vector<double> values;
  for (const auto& [replicas, value] : local_sums) {
    values.push_back(value);
  }
  const at::Tensor of_ranks = at::tensor(values, at::kDouble);
  pager.ranks().sum(of_ranks);
  double sum = 0;
  int64_t row = 0;
  for (const auto& [replicas, value] : local_sums) {
    sum += of_ranks[row++].item<double>() / replicas;
  }
  const at::Tensor total = at::tensor({sum}, at::kDouble);
  pager.ranks().sum_over_model(total);
  // abs: the NaN of inf - inf has a sign, which would be printed.
  return std::abs(std::pow(total.item<double>(), 1 / p));
}

at::Tensor gradient_norm_on_device(Pager& pager, GradientSums& sums, double p) {
  const bool largest = std::isinf(p);
  const auto reduce = [&](Communicator& ranks, const at::Tensor& values) {
    (largest ? ranks.all_reduce_max(values, "largest gradient")
             : ranks.all_reduce_sum(values, "norm of the gradients"))
        .wait(pager.ranks().watch_failures());
  };
  at::Tensor total;
  for (const auto& mesh : pager.ranks().meshes()) {
    if (mesh->copies() != nullptr) {
      continue; // counted with the module's
    }
    at::Tensor local = sums.total_on_device(pager, *mesh, p);
    if (largest) {
      local = with_nan_flag(local);
    }
    reduce(mesh->shards(), local);
    if (mesh->parts() != nullptr) {
      reduce(*mesh->parts(), local);
    }
    total = !total.defined() ? local
            : largest        ? at::maximum(total, local)
                             : total + local;
  }
  if (!largest) {
    pager.ranks().sum_over_model(total);
    return total.pow_(1 / p).squeeze(0);
  }
  pager.ranks().max_over_parts(total);
  return without_nan_flag(total);
}

NonfiniteGradients find_nonfinite_gradients(Pager& pager, GradientSums& sums) {
  const runtime::EngineReads reads;
  double local = 0;
  const size_t parameters = pager.pages().entries().size();
  size_t first = parameters;
  for (const auto& sum : sums.all(pager.pages(), 2)) {
    if (!std::isfinite(sum.of_powers) || !std::isfinite(sum.factor)) {
      local += 1;
      first = std::min(first, sum.parameter);
    }
  }
  const at::Tensor all = at::tensor({local}, at::kDouble);
  pager.sum_over_ranks(all);
  pager.ranks().sum_over_model(all);
  if (all.item<double>() == 0) {
    return {};
  }
  // Ranks with the same part of the model have the same parameters.
  const at::Tensor lowest =
      at::tensor({-static_cast<double>(first)}, at::kDouble);
  pager.max_over_ranks(lowest);
  const auto found = static_cast<size_t>(-lowest.item<double>());
  return {
      true,
      found < parameters ? pager.pages().parameter(found).record.name()
                         : std::string()};
}

void clamp_gradients(Pager& pager, double limit) {
  const c10::NoGradGuard no_grad;
  for (const auto& page : pager.pages()) {
    if (!has_gradients(*page)) {
      continue;
    }
    pager.before_gradients_change(*page);
    GradientBucket& bucket = *page->gradients;
    const double bound = limit / bucket.factor();
    bucket.change([&](const at::Tensor& shard) {
      for (const at::Tensor& segment : segments_with_gradient(bucket, shard)) {
        segment.clamp_(-bound, bound);
      }
    });
  }
}

} // namespace tessera::sharding
