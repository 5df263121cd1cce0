// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/load_weights.h"

#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/pager.h"
#include "tessera/sharding/weight_matching.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

namespace tessera {

namespace {

namespace fs = std::filesystem;

/// A parameter's place in a flat buffer and the view that is loaded into it.
struct FlatWeight {
  sharding::EntryView source;
  runtime::FlatSpan span;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool is_contiguous = true;
};

FlatWeight flat_weight(const sharding::WeightTarget& target, int64_t begin) {
  return {
      target.source,
      {begin, sharding::storage_extent(target.tensor)},
      target.tensor.sizes().vec(),
      target.tensor.strides().vec(),
      target.tensor.is_contiguous()};
}

/// Writes the part of the weight that overlaps `slice`, which begins at element
/// `first` of the flat buffer.
void read_part(
    const FlatWeight& weight,
    const at::Tensor& slice,
    int64_t first) {
  const int64_t from = std::max(first, weight.span.begin);
  const int64_t to = std::min(first + slice.numel(), weight.span.end());
  if (from >= to) {
    return;
  }
  const at::Tensor part = slice.narrow(0, from - first, to - from);
  const int64_t offset = from - weight.span.begin;
  if (weight.is_contiguous) {
    read_elements(weight.source, offset, part);
    return;
  }
  // The elements are scattered over the buffer, possibly with gaps.
  const at::Tensor values = at::zeros({weight.span.numel}, slice.options());
  const at::Tensor is_written = values.to(at::kBool);
  sharding::read_whole(
      weight.source, values.as_strided(weight.sizes, weight.strides));
  is_written.as_strided(weight.sizes, weight.strides).fill_(true);
  part.copy_(at::where(
      is_written.narrow(0, offset, part.numel()),
      values.narrow(0, offset, part.numel()),
      part));
}

/// A DeferredInit's fill function that reads files.
struct FileFill {
  std::shared_ptr<const sharding::WeightFiles> files;
  std::vector<FlatWeight> weights;
  /// Fills the elements that no weight covers; may be empty.
  std::function<void(const at::Tensor&, int64_t)> rest;

  void operator()(const at::Tensor& slice, int64_t first_element) const {
    const c10::NoGradGuard no_grad;
    if (rest) {
      rest(slice, first_element);
    }
    for (const FlatWeight& weight : weights) {
      read_part(weight, slice, first_element);
    }
  }
};

void defer_reading(
    c10::StorageImpl& storage,
    const std::vector<const sharding::WeightTarget*>& targets,
    const std::shared_ptr<const sharding::WeightFiles>& files) {
  FileFill fill{files, {}, {}};
  std::vector<std::shared_ptr<uint64_t>> seeds;
  int64_t covered = 0;
  for (const sharding::WeightTarget* target : targets) {
    fill.weights.push_back(
        flat_weight(*target, target->tensor.storage_offset()));
    covered += target->tensor.nbytes();
  }
  if (covered < static_cast<int64_t>(storage.nbytes())) {
    fill.rest = sharding::deferred_init(storage)->fill;
    seeds = sharding::deferred_init(storage)->seeds;
  }
  sharding::set_deferred_init(
      storage,
      {std::move(fill),
       "parameter '" + targets.front()->names.front() + "'",
       std::move(seeds)});
}

} // namespace

LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const fs::path& path,
    const LoadWeightsOptions& options) {
  const auto files = std::make_shared<const sharding::WeightFiles>(
      sharding::WeightFiles::open(path));
  auto targets = sharding::weight_targets_in(module);
  auto report = sharding::match_weights(targets, *files, options);
  std::unordered_map<
      c10::StorageImpl*,
      std::vector<const sharding::WeightTarget*>>
      deferred;
  for (const sharding::WeightTarget& target : targets) {
    if (target.source.entry == nullptr) {
      continue;
    }
    if (sharding::is_deferred(target.tensor)) {
      deferred[target.tensor.storage().unsafeGetStorageImpl()].push_back(
          &target);
    } else {
      sharding::read_whole(target.source, target.tensor);
    }
  }
  for (const auto& [storage, members] : deferred) {
    defer_reading(*storage, members, files);
  }
  return report;
}

LoadWeightsReport load_sharded_weights(
    sharding::Pager& pager,
    torch::nn::Module& module,
    const fs::path& path,
    const LoadWeightsOptions& options,
    Communicator* stages) {
  const c10::NoGradGuard no_grad;
  const auto files = sharding::WeightFiles::open(path);
  auto targets = sharding::weight_targets_in(module);
  auto report =
      stages == nullptr
          ? sharding::match_weights(targets, files, options)
          : match_weights_of_stage(
                targets, files, options, *stages, pager.watch_failures());
  pager.settle_gradients();
  pager.wait_for_gather_lane();
  std::unordered_map<const c10::TensorImpl*, const sharding::WeightTarget*>
      by_tensor;
  for (const sharding::WeightTarget& target : targets) {
    by_tensor.emplace(target.tensor.unsafeGetTensorImpl(), &target);
  }
  for (const auto& group : pager.groups()) {
    const runtime::FlatSpan mine =
        group->layout().shard(pager.mesh().shard_rank);
    at::Tensor master;
    for (const sharding::PagedParameter& parameter : group->parameters()) {
      const auto found =
          by_tensor.find(parameter.record.tensor.unsafeGetTensorImpl());
      if (found == by_tensor.end() || found->second->source.entry == nullptr) {
        continue;
      }
      if (!master.defined()) {
        master = group->read_master();
      }
      read_part(
          flat_weight(*found->second, parameter.span.begin),
          master,
          mine.begin);
      by_tensor.erase(found);
    }
    if (master.defined()) {
      group->write_master(master);
    }
  }
  // Buffers, and parameters that the engine ignores.
  for (const auto& [tensor, target] : by_tensor) {
    if (target->source.entry != nullptr) {
      sharding::read_whole(target->source, target->tensor);
    }
  }
  pager.invalidate();
  return report;
}

} // namespace tessera
