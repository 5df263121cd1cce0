// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/load_weights.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/comm/on_all_ranks.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/tensors/tensor_io.h"
#include "tessera/sharding/weights/weight_matching.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

namespace tessera {

namespace {

namespace fs = std::filesystem;

/// A parameter's place in a flat buffer and where a file has it.
struct FlatWeight {
  const sharding::WeightEntry* entry = nullptr;
  std::vector<sharding::FileRegion> source;
  TensorSpec spec;
  runtime::FlatSpan span;
  std::vector<int64_t> sizes; ///< of the parameter on this rank
  std::vector<int64_t> strides;
  bool is_contiguous = true;
};

FlatWeight flat_weight(const sharding::WeightTarget& target, int64_t begin) {
  return {
      target.entry,
      target.source,
      target.spec,
      {begin, sharding::storage_extent(target.tensor)},
      target.tensor.sizes().vec(),
      target.tensor.strides().vec(),
      target.tensor.is_contiguous()};
}

/// Reads all that this rank has of a tensor.
/// @param source the whole tensor in the entry.
void read_local(
    const sharding::WeightEntry& entry,
    const std::vector<sharding::FileRegion>& source,
    const TensorSpec& spec,
    const at::Tensor& target) {
  auto local = sharding::blocks_of(spec.sizes, spec.part());
  for (sharding::TensorBlock& block : local) {
    block.layout = {0, target.strides().vec()};
  }
  sharding::read_regions(entry, source, local, target.detach());
}

/// Compares the checksums of what read_part() will read of a slice of `numel`
/// elements.
void verify_part(const FlatWeight& weight, int64_t first, int64_t numel) {
  const int64_t from = std::max(first, weight.span.begin);
  const int64_t to = std::min(first + numel, weight.span.end());
  if (from >= to) {
    return;
  }
  const TensorSlice local = weight.spec.part();
  const TensorSlice here =
      weight.is_contiguous
          ? TensorSlice{local.ranges, from - weight.span.begin, to - from}
          : local;
  sharding::verify_regions(
      weight.source, sharding::blocks_of(weight.spec.sizes, here));
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
    const TensorSlice here{weight.spec.part().ranges, offset, part.numel()};
    sharding::read_regions(
        *weight.entry,
        weight.source,
        sharding::blocks_of(weight.spec.sizes, here),
        part);
    return;
  }
  // The elements are scattered over the buffer, possibly with gaps.
  const at::Tensor values = at::zeros({weight.span.numel}, slice.options());
  const at::Tensor is_written = values.to(at::kBool);
  read_local(
      *weight.entry,
      weight.source,
      weight.spec,
      values.as_strided(weight.sizes, weight.strides));
  is_written.as_strided(weight.sizes, weight.strides).fill_(true);
  part.copy_(at::where(
      is_written.narrow(0, offset, part.numel()),
      values.narrow(0, offset, part.numel()),
      part));
}

/// A DeferredInit's fill function that reads files.
struct FileFill {
  sharding::WeightFiles files; ///< keeps them open
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

/// DeferredInit::files_contents.
std::string contents_of(const sharding::WeightFiles& files) {
  std::ostringstream text;
  for (const auto& [name, entry] : files.entries()) {
    text << name << " " << static_cast<int>(entry.dtype) << " "
         << at::IntArrayRef(entry.shape) << "\n";
  }
  const std::string all = text.str();
  return runtime::checksum_of(std::as_bytes(std::span(all)));
}

void defer_reading(
    c10::StorageImpl& storage,
    const std::vector<const sharding::WeightTarget*>& targets,
    const sharding::WeightFiles& files,
    const std::string& contents) {
  FileFill fill{files, {}, {}};
  sharding::DeferredInit init{
      .fill = {},
      .name = "parameter '" + targets.front()->spec.name() + "'",
      .files_identity = files.identity(),
      .files_contents = contents};
  int64_t covered = 0;
  for (const sharding::WeightTarget* target : targets) {
    fill.weights.push_back(
        flat_weight(*target, target->tensor.storage_offset()));
    covered += target->tensor.nbytes();
  }
  if (covered < static_cast<int64_t>(storage.nbytes())) {
    const sharding::DeferredInit& before = *sharding::deferred_init(storage);
    fill.rest = before.fill;
    init.seeds = before.seeds;
    init.init_seed = before.init_seed;
  }
  init.fill = std::move(fill);
  sharding::set_deferred_init(storage, std::move(init));
}

/// Compares the checksums of all that this rank is going to read.
void verify_source(
    const sharding::Pager& pager,
    const std::unordered_map<
        const c10::TensorImpl*,
        const sharding::WeightTarget*>& targets) {
  auto others = targets;
  for (const auto& page : pager.pages()) {
    const runtime::FlatSpan self_span = page->spec().shard();
    for (const sharding::PagedParameter& parameter : page->parameters()) {
      const auto found =
          others.find(parameter.record.tensor.unsafeGetTensorImpl());
      if (found != others.end()) {
        if (found->second->entry != nullptr) {
          verify_part(
              flat_weight(*found->second, parameter.span.begin),
              self_span.begin,
              self_span.numel);
        }
        others.erase(found);
      }
    }
  }
  for (const auto& [tensor, target] : others) {
    if (target->entry != nullptr) {
      sharding::verify_regions(
          target->source,
          sharding::blocks_of(target->spec.sizes, target->spec.part()));
    }
  }
}

/// Shards of other files, or of other tensors of them, would be mixed.
void check_same_files(
    const sharding::WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& ranks,
    const WaitCheck& check) {
  const std::string other = runtime::find_differences(
      ranks,
      files.identity(),
      "'" + fs::absolute(files.path()).string() + "'",
      "the files of weights that the ranks have",
      check);
  TESSERA_CHECK(
      other.empty(),
      "load_weights: the ranks have opened files with different weights:{}\nAll ranks must load the same ones: from a folder that all nodes see, or from copies of it.",
      other);
  nlohmann::json rules = nlohmann::json::array();
  for (const RenameRule& rule : options.rename_rules) {
    rules.push_back({rule.from, rule.to});
  }
  const std::string chosen =
      nlohmann::json{
          {"only", options.only},
          {"except", options.except},
          {"rename_rules", std::move(rules)},
          {"strict", options.strict}}
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::string others = runtime::find_differences(
      ranks, chosen, chosen, "which weights the ranks load", check);
  TESSERA_CHECK(
      others.empty(),
      "load_weights: the ranks have different options:{}\nGive all ranks the same.",
      others);
}

/// Whether every rank has all tensors, or its part of them.
bool has_full_model(const sharding::Pager& pager) {
  return pager.ranks().model().size(sharding::kPipelineAxis) == 1 &&
         std::none_of(
             pager.pages().begin(), pager.pages().end(), [](const auto& page) {
               return page->spec().of_experts;
             });
}

} // namespace

LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const fs::path& path,
    const LoadWeightsOptions& options) {
  return load_weights(module, sharding::WeightFiles::open(path), options);
}

LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const sharding::WeightFiles& files,
    const LoadWeightsOptions& options) {
  TESSERA_CHECK(
      !options.optimizer_state,
      "load_weights: optimizer_state is set, but there is no optimizer; load into an engine (Engine::load_weights).");
  auto targets = sharding::weight_targets_in(module);
  auto report = sharding::match_weights(targets, files, options);
  for (const sharding::WeightTarget& target : targets) {
    if (target.entry != nullptr && !sharding::is_deferred(target.tensor)) {
      sharding::verify_regions(
          target.source,
          sharding::blocks_of(target.spec.sizes, target.spec.part()));
    }
  }
  std::unordered_map<
      c10::StorageImpl*,
      std::vector<const sharding::WeightTarget*>>
      deferred;
  for (const sharding::WeightTarget& target : targets) {
    if (target.entry == nullptr) {
      continue;
    }
    if (sharding::is_deferred(target.tensor)) {
      deferred[target.tensor.storage().unsafeGetStorageImpl()].push_back(
          &target);
    } else {
      read_local(*target.entry, target.source, target.spec, target.tensor);
    }
  }
  const std::string contents = deferred.empty() ? "" : contents_of(files);
  for (const auto& [storage, members] : deferred) {
    defer_reading(*storage, members, files, contents);
  }
  return report;
}

LoadWeightsReport load_sharded_weights(
    sharding::Pager& pager,
    torch::nn::Module& module,
    const sharding::WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& ranks) {
  const c10::NoGradGuard no_grad;
  pager.agree_on_files(sharding::FileUse::kLoadWeights);
  check_same_files(files, options, ranks, pager.ranks().watch_failures());
  auto targets = sharding::weight_targets_in(module);
  auto report =
      has_full_model(pager)
          ? sharding::match_weights(targets, files, options)
          : sharding::match_weights_of_rank(
                targets, files, options, ranks, pager.ranks().watch_failures());
  std::unordered_map<const c10::TensorImpl*, const sharding::WeightTarget*>
      by_tensor;
  for (const sharding::WeightTarget& target : targets) {
    by_tensor.emplace(target.tensor.unsafeGetTensorImpl(), &target);
  }
  runtime::on_all_ranks(
      ranks,
      "load_weights: comparing checksums",
      [&] { verify_source(pager, by_tensor); },
      pager.ranks().watch_failures());
  pager.settle_gradients();
  pager.wait_for_gather_lane();
  for (const auto& page : pager.pages()) {
    const runtime::FlatSpan self_span = page->spec().shard();
    at::Tensor master;
    for (const sharding::PagedParameter& parameter : page->parameters()) {
      const auto found =
          by_tensor.find(parameter.record.tensor.unsafeGetTensorImpl());
      if (found == by_tensor.end() || found->second->entry == nullptr) {
        continue;
      }
      if (!master.defined()) {
        master = pager.scopes().read_master(*page);
      }
      read_part(
          flat_weight(*found->second, parameter.span.begin),
          master,
          self_span.begin);
      by_tensor.erase(found);
    }
    if (master.defined()) {
      sharding::GatherScopes::write_master(*page, master);
    }
  }
  // Buffers, and parameters that the engine ignores.
  for (const auto& [tensor, target] : by_tensor) {
    if (target->entry != nullptr) {
      read_local(*target->entry, target->source, target->spec, target->tensor);
    }
  }
  pager.invalidate();
  return report;
}

} // namespace tessera
