// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_spec.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/memory/offset_allocator.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/sharding/pages/grouping.h"
#include "tessera/sharding/pages/replica_parts.h"

#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace tessera::sharding {

namespace {

/// Storages in order of their first use, and which one each tensor is in.
class StorageList {
 public:
  size_t add(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    const auto [found, is_new] =
        index_.emplace(storage.unsafeGetStorageImpl(), storages_.size());
    if (is_new) {
      storages_.push_back(storage);
    }
    return found->second;
  }

  std::vector<c10::Storage>& storages() {
    return storages_;
  }

 private:
  std::vector<c10::Storage> storages_;
  std::unordered_map<const c10::StorageImpl*, size_t> index_;
};

/// Linear layers whose weight is not the one that they have registered, as
/// after `head->weight = embedding->weight`.
std::vector<at::Tensor> replaced_weights(const torch::nn::Module& module) {
  std::vector<at::Tensor> weights;
  for (const auto& part : module.modules(/*include_self=*/false)) {
    const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(part.get());
    if (linear == nullptr) {
      continue;
    }
    const auto registered = part->named_parameters(/*recurse=*/false);
    const at::Tensor* local = registered.find("weight");
    if (local != nullptr && !local->is_same(linear->weight)) {
      weights.push_back(linear->weight);
    }
  }
  return weights;
}

/// The parameter of a page that other pipeline stages have too, by the first
/// of its names there, whatever their order here.
std::map<std::string, DeviceMesh>::const_iterator tied_parameter(
    const PageSpec& page,
    const PageMeshes& meshes) {
  std::vector<std::string> names = page.parameters.front().record.spec.names;
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (const auto found = meshes.tied.find(name); found != meshes.tied.end()) {
      return found;
    }
  }
  return meshes.tied.end();
}

/// The format in which a page is sent; none: as it is.
std::optional<runtime::BlockFormat> format_of(
    Compression compression,
    int64_t block_numel,
    at::ScalarType dtype) {
  if (!runtime::can_encode(dtype)) {
    return std::nullopt;
  }
  switch (compression) {
    case Compression::kNone:
      return std::nullopt;
    case Compression::kInt8:
      return runtime::BlockFormat{runtime::CodeType::kInt8, block_numel};
    case Compression::kInt4:
      return runtime::BlockFormat{runtime::CodeType::kInt4, block_numel};
    case Compression::kFp8:
      return runtime::BlockFormat{runtime::CodeType::kFp8, block_numel};
  }
  return std::nullopt;
}

/// Elements of `dtype` that take so many bytes, in whole slots.
int64_t slot_numel_of(int64_t bytes, at::ScalarType dtype) {
  constexpr int64_t kAlignment = runtime::OffsetAllocator::kAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment /
         runtime::size_of(dtype);
}

/// PagedParameter::counts
bool counts(
    const ParameterRecord& parameter,
    const DeviceMesh& page,
    const PageMeshes& meshes) {
  const bool is_later_copy =
      page.has(kPipelineAxis) && page.index(kPipelineAxis) > 0;
  return !is_later_copy &&
         (meshes.model.index(kTensorAxis) == 0 || parameter.spec.is_divided());
}

} // namespace

int64_t replica_part_numel(const PageSpec& page) {
  const int64_t replicas = page.mesh.size(kReplicateAxis);
  if (!page.reduce_format || replicas == 1) {
    return 0;
  }
  const int64_t block = page.reduce_format->block_numel;
  const int64_t part =
      ((page.layout.shard_numel() + replicas - 1) / replicas + block - 1) /
      block * block;
  return replicas * part <= page.layout.padded_numel() ? part : 0;
}

int64_t numel_of(const c10::Storage& storage, at::ScalarType dtype) {
  const int64_t size = runtime::size_of(dtype);
  return (static_cast<int64_t>(storage.nbytes()) + size - 1) / size;
}

TensorSpec sharded_spec(
    TensorSpec spec,
    const PagedParameter& parameter,
    const PageSpec& page) {
  spec.axes.push_back(
      {kShardAxis,
       page.mesh.size(kShardAxis),
       page.mesh.index(kShardAxis),
       Flat{parameter.span, page.layout.shard_numel()}});
  return spec;
}

std::vector<c10::Storage> storages_of(const PageSpec& page) {
  StorageList list;
  for (const PagedParameter& parameter : page.parameters) {
    list.add(parameter.record.tensor);
  }
  return std::move(list.storages());
}

int64_t PageSpec::shard_bytes() const {
  return runtime::bytes_of(resting_numel(), resting_dtype());
}

int64_t PageSpec::resting_numel() const {
  const int64_t numel = layout.shard_numel();
  return resting_format ? resting_format->bytes(numel) : numel;
}

int64_t PageSpec::gradient_shard_bytes() const {
  return keeps_gradient_shard ? first_gradient_bytes() : 0;
}

int64_t PageSpec::first_gradient_bytes() const {
  return trainable ? runtime::bytes_of(layout.shard_numel(), gradients.shard)
                   : 0;
}

int64_t PageSpec::gather_slot_numel() const {
  const auto& blocks = resting_format ? resting_format : gather_format;
  const int64_t wire =
      blocks ? mesh.size(kShardAxis) * blocks->bytes(layout.shard_numel()) : 0;
  return layout.padded_numel() + slot_numel_of(wire, dtype);
}

int64_t PageSpec::gather_slot_bytes() const {
  return runtime::bytes_of(gather_slot_numel(), dtype);
}

int64_t PageSpec::reduce_wire_numel() const {
  if (!reduce_format) {
    return 0;
  }
  const int64_t replicas = mesh.size(kReplicateAxis);
  return slot_numel_of(
      std::max(
          mesh.size(kShardAxis) * reduce_format->bytes(layout.shard_numel()),
          2 * replicas * reduce_format->bytes(replica_part_numel(*this))),
      gradients.slot);
}

int64_t PageSpec::gradient_slot_numel(bool stored) const {
  return gradients.slot_numel(
             layout.padded_numel(), layout.shard_numel(), stored) +
         reduce_wire_numel();
}

int64_t PageSpec::gradient_slot_bytes(bool stored) const {
  return trainable
             ? runtime::bytes_of(gradient_slot_numel(stored), gradients.slot)
             : 0;
}

PageSpec lay_out(
    PageSpec page,
    int number,
    size_t first_index,
    const PagerOptions& options,
    const DeviceMesh& mesh) {
  const ParameterRecord first = page.parameters.front().record;
  StorageList list;
  std::vector<size_t> storage_of;
  for (const PagedParameter& parameter : page.parameters) {
    storage_of.push_back(list.add(parameter.record.tensor));
  }
  std::vector<int64_t> numels;
  for (const c10::Storage& storage : list.storages()) {
    // The storages still have the original dtype.
    numels.push_back(numel_of(storage, first.tensor.scalar_type()));
  }
  page.number = number;
  page.device = first.tensor.device();
  page.dtype = first.dtype;
  page.original_dtype = first.tensor.scalar_type();
  page.mesh = mesh;
  int64_t alignment =
      runtime::OffsetAllocator::kAlignment / runtime::size_of(first.dtype);
  if (page.resting_format) { // blocks lie in one parameter and one shard
    alignment = std::max(alignment, page.resting_format->unit_numel());
  }
  page.layout = runtime::FlatLayout(numels, alignment, mesh.size(kShardAxis));
  page.casts_arguments =
      options.precision.is_mixed() && at::isFloatingType(first.dtype);
  page.keeps_full_gradients = keeps_full_gradients(options, page.zero_stage);
  page.stays_after_forward =
      !page.resting_format &&
      !page.reshard_after_forward.value_or(
          page.zero_stage.value_or(options.zero_stage) == 3);
  page.gradients = gradient_types(
      options, page.gradient_ranks(), first.dtype, page.zero_stage);
  for (size_t i = 0; i < page.parameters.size(); ++i) {
    PagedParameter& parameter = page.parameters[i];
    const at::Tensor& tensor = parameter.record.tensor;
    page.trainable = page.trainable || tensor.requires_grad();
    page.is_tied = page.is_tied || parameter.record.spec.names.size() > 1;
    parameter.index = first_index + i;
    parameter.span = {
        page.layout.offset(storage_of[i]) + tensor.storage_offset(),
        storage_extent(tensor)};
  }
  if (mesh.size(kShardAxis) > 1 && !page.full_precision &&
      !page.resting_format) {
    const CommunicationOptions& sent = options.communication;
    page.gather_format =
        format_of(sent.gather, sent.block_elements, page.dtype);
    page.reduce_format =
        format_of(sent.reduce, sent.block_elements, page.gradients.slot);
  }
  page.keeps_gradient_shard = page.trainable && !options.update_in_backward;
  page.has_separate_master = page.trainable &&
                             options.precision.master_weights &&
                             is_low_precision(page.dtype);
  return page;
}

std::vector<PageSpec> plan_pages(
    const torch::nn::Module& module,
    const PagerOptions& options,
    const PageMeshes& meshes) {
  check(options);
  const ModuleChoices choices(module, options.modules, options.other_names);
  const bool is_stage = meshes.model.size(kPipelineAxis) > 1;
  if (!is_stage) { // a rule may be for another one
    choices.check_all_match();
  }
  auto census = take_parameter_census(
      module,
      choices,
      is_stage ? formatted(
                     " of pipeline stage {}", meshes.model.index(kPipelineAxis))
               : "");
  choose_dtypes(module, options.precision, choices, census);
  choose_frozen_weights(module, options.precision, choices, census);
  std::set<std::string> tied_over_stages;
  for (const auto& [name, mesh] : meshes.tied) {
    tied_over_stages.insert(name);
  }
  const std::vector<at::Tensor> replaced = replaced_weights(module);
  std::vector<PageSpec> pages;
  size_t first_index = 0;
  for (PageSpec& group : group_parameters(
           module, census, options.groups, choices, tied_over_stages)) {
    TESSERA_CHECK(
        !group.of_experts || meshes.experts,
        "wrap: '{}' belongs to an expert that other ranks do not have; set EngineOptions::parallel, the mesh, with ParallelSizes::expert, which says which ranks have the same experts.",
        group.parameters.front().record.name());
    const auto tied = tied_parameter(group, meshes);
    const DeviceMesh& mesh = tied != meshes.tied.end() ? tied->second
                             : group.of_experts        ? *meshes.experts
                                                       : meshes.module;
    PageSpec& page = pages.emplace_back(lay_out(
        std::move(group),
        static_cast<int>(pages.size()),
        first_index,
        options,
        mesh));
    if (tied != meshes.tied.end()) {
      page.tied_name = tied->first;
    }
    for (PagedParameter& parameter : page.parameters) {
      parameter.counts = counts(parameter.record, page.mesh, meshes);
    }
    first_index += page.parameters.size();
    page.is_tied =
        page.is_tied ||
        std::any_of(
            page.parameters.begin(),
            page.parameters.end(),
            [&](const PagedParameter& parameter) {
              return std::any_of(
                  replaced.begin(), replaced.end(), [&](const auto& weight) {
                    return weight.is_same(parameter.record.tensor);
                  });
            });
  }
  return pages;
}

} // namespace tessera::sharding
