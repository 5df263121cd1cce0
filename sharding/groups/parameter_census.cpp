// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/parameter_census.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"

#include <ATen/MemoryOverlap.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace tessera::sharding {

namespace {

void check_shardable(const ParameterRecord& record, c10::Device device) {
  const at::Tensor& tensor = record.tensor;
  TESSERA_CHECK(
      tensor.layout() == at::kStrided && tensor.has_storage(),
      "wrap: parameter '{}' has layout {}; only dense strided parameters can be sharded. Keep it as a buffer, or make it dense.",
      record.name(),
      tensor.layout());
  TESSERA_CHECK(
      tensor.device() == device,
      "wrap: parameter '{}' is on {}, others are on {}. Move the whole module to one device first.",
      record.name(),
      tensor.device(),
      device);
  TESSERA_CHECK(
      !tensor.is_meta(),
      "wrap: parameter '{}' is on the meta device, where there are no values. Build the model on the CPU, or inside tessera::lazy() (Python: tessera.lazy()), which allocates no memory either and keeps how parameters are initialized.",
      record.name());
  TESSERA_CHECK(
      !has_page_key(tensor),
      "wrap: parameter '{}' is already held by another engine. Wrap a module once, or unwrap() the other engine first.",
      record.name());
  TESSERA_CHECK(
      !tensor.requires_grad() || at::isFloatingType(tensor.scalar_type()),
      "wrap: parameter '{}' is of type {} and requires a gradient; real floating-point numbers are trained. Register its real and imaginary parts as one (view_as_real() of it; view_as_complex() where it is used), or freeze it before wrap (requires_grad_(false)).",
      record.name(),
      tensor.scalar_type());
  TESSERA_CHECK(
      tensor.is_leaf(),
      "wrap: parameter '{}' is not a leaf of the autograd graph; register a leaf tensor.",
      record.name());
  TESSERA_CHECK(
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      "wrap: parameter '{}' addresses some of its elements twice (an expanded tensor?). Register tensor.contiguous() instead.",
      record.name());
}

void check_disjoint(const std::vector<ParameterRecord>& records) {
  std::unordered_map<const c10::StorageImpl*, std::vector<size_t>> by_storage;
  for (size_t i = 0; i < records.size(); ++i) {
    by_storage[records[i].tensor.storage().unsafeGetStorageImpl()].push_back(i);
  }
  for (auto& [storage, members] : by_storage) {
    std::sort(members.begin(), members.end(), [&](size_t a, size_t b) {
      return records[a].tensor.storage_offset() <
             records[b].tensor.storage_offset();
    });
    for (size_t i = 1; i < members.size(); ++i) {
      const ParameterRecord& low = records[members[i - 1]];
      const ParameterRecord& high = records[members[i]];
      TESSERA_CHECK(
          low.tensor.storage_offset() + storage_extent(low.tensor) <=
              high.tensor.storage_offset(),
          "wrap: parameters '{}' and '{}' are different tensors over the same memory. To tie them, register one tensor in both places.",
          low.name(),
          high.name());
    }
  }
}

/// Files have the names as JSON.
void check_name(const std::string& name) {
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    TESSERA_FAIL(
        "wrap: the name {} of a parameter or buffer is not UTF-8, as names in files have to be. Give it another one.",
        runtime::show_json(name));
  }
}

/// Checks that a tensor or storage is ignored either everywhere or nowhere.
void check_not_ignored_elsewhere(
    const std::vector<ParameterRecord>& records,
    const std::vector<ParameterRecord>& ignored) {
  std::unordered_map<const c10::StorageImpl*, const ParameterRecord*> left;
  for (const ParameterRecord& record : ignored) {
    if (record.tensor.has_storage()) {
      left.emplace(record.tensor.storage().unsafeGetStorageImpl(), &record);
    }
  }
  for (const ParameterRecord& record : records) {
    if (!record.tensor.has_storage()) {
      continue;
    }
    const auto found =
        left.find(record.tensor.storage().unsafeGetStorageImpl());
    if (found == left.end()) {
      continue;
    }
    const std::string& ignored_name = found->second->name();
    const auto& names = record.spec.names;
    TESSERA_FAIL(
        "wrap: parameter '{}' is ignored, but '{}' uses the same memory (tied weights?). Ignore both or neither.",
        ignored_name,
        *std::find_if(names.begin(), names.end(), [&](const auto& name) {
          return name != ignored_name;
        }));
  }
}

} // namespace

int64_t storage_extent(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return last + 1;
}

std::vector<ParameterRecord> take_parameter_census(
    const torch::nn::Module& module,
    const ModuleChoices& choices,
    const std::string& place) {
  for (const auto& item : module.named_buffers()) {
    check_name(item.key());
  }
  TensorSpecs specs = specs_in(module);
  const auto experts = parameters_of_divided_experts(module);
  std::vector<ParameterRecord> records;
  std::vector<ParameterRecord> left_alone;
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    const at::Tensor& tensor = item.value();
    check_name(item.key());
    if (choices.ignores(item.key())) {
      left_alone.push_back(
          {full_spec({item.key()}, tensor.sizes().vec(), tensor.scalar_type()),
           tensor});
      continue;
    }
    // A tied parameter is taken with its first name; the spec has them all.
    if (auto spec = specs.extract(tensor.unsafeGetTensorImpl())) {
      records.push_back(
          {std::move(spec.mapped()),
           tensor,
           tensor.scalar_type(),
           experts.contains(tensor.unsafeGetTensorImpl())});
    }
  }
  TESSERA_CHECK(
      !records.empty(),
      "wrap: the module{} has no parameters to shard{}. It needs one at least, which may be frozen: {}.",
      place,
      left_alone.empty() ? "" : "; all of them are ignored",
      place.empty()
          ? "wrap a module that has some"
          : "give this stage a layer with parameters, or register one that requires no gradient");
  check_not_ignored_elsewhere(records, left_alone);
  for (const ParameterRecord& record : records) {
    check_shardable(record, records.front().tensor.device());
  }
  check_disjoint(records);
  return records;
}

} // namespace tessera::sharding
