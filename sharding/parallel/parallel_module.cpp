// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/parallel_module.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/divided_weight.h"
#include "tessera/sharding/parallel/slice_init.h"

#include <utility>

namespace tessera {

ParallelModule::ParallelModule(const TensorParallel& how) : how_(how) {
  TESSERA_CHECK(
      how_.group != nullptr,
      "a parallel layer was given no group: set TensorParallel::group; for a single rank, use a Communicator of one.");
}

at::Tensor ParallelModule::register_part(
    const std::string& name,
    std::vector<int64_t> sizes,
    const ParameterPart& part,
    InitMethod init,
    const DistributedParameterOptions& options) {
  const int rank = how_.group->rank();
  const int64_t length = part.split.length(rank);
  std::vector<int64_t> own_sizes = sizes;
  own_sizes[static_cast<size_t>(part.dim)] = length;
  parts_.emplace(name, part);
  return register_parameter(
      name,
      DistributedParameter(
          own_sizes,
          sharding::slice_init(
              std::move(init),
              {std::move(sizes), part.dim, part.split.begin(rank), length}),
          options));
}

at::Tensor ParallelModule::register_whole(
    const std::string& name,
    at::IntArrayRef sizes,
    InitMethod init,
    const DistributedParameterOptions& options) {
  return register_parameter(
      name, DistributedParameter(sizes, std::move(init), options));
}

ParameterParts parts_in(const torch::nn::Module& module) {
  ParameterParts found;
  for (const at::Tensor& parameter : module.parameters()) {
    if (const auto* divided = sharding::divided_parameter(parameter)) {
      found.emplace(parameter.unsafeGetTensorImpl(), divided->part);
    }
  }
  const auto add = [&](const torch::nn::Module& one) {
    const auto* parallel = dynamic_cast<const ParallelModule*>(&one);
    if (parallel == nullptr) {
      return;
    }
    const auto parameters = one.named_parameters(/*recurse=*/false);
    for (const auto& [name, part] : parallel->parts()) {
      found.emplace(parameters[name].unsafeGetTensorImpl(), part);
    }
  };
  add(module);
  for (const auto& child : module.modules(/*include_self=*/false)) {
    add(*child);
  }
  return found;
}

std::vector<int64_t> whole_sizes(
    const at::Tensor& parameter,
    const ParameterParts& parts) {
  std::vector<int64_t> sizes = parameter.sizes().vec();
  const auto found = parts.find(parameter.unsafeGetTensorImpl());
  if (found != parts.end()) {
    sizes[static_cast<size_t>(found->second.dim)] = found->second.split.size();
  }
  return sizes;
}

} // namespace tessera
