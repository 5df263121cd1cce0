// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/distributed_parameter.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"

#include <optional>
#include <utility>

namespace tessera {

namespace {

/// The type in DeferredInit::fill by which init_parameters() recognizes
/// distributed parameters.
struct DistributedFill {
  std::vector<int64_t> sizes;
  InitMethod method;
  std::optional<RandomStream> random; ///< set by init_parameters()

  void operator()(const at::Tensor& slice, int64_t first_element) const {
    TESSERA_CHECK(
        random.has_value(),
        "a distributed parameter of sizes {} has no initial value yet: call tessera::init_parameters(module, seed) before the module is wrapped or materialized.",
        at::IntArrayRef(sizes));
    method(slice, {sizes, first_element, *random});
  }
};

} // namespace

DistributedParameter::DistributedParameter(
    at::IntArrayRef sizes,
    InitMethod init,
    const DistributedParameterOptions& options) {
  TESSERA_CHECK(
      init != nullptr,
      "DistributedParameter: no init method was given; pass one, such as zeros_init().");
  tensor_ = sharding::make_deferred(
      sizes,
      at::TensorOptions().dtype(options.dtype).device(options.device),
      {DistributedFill{sizes.vec(), std::move(init), std::nullopt},
       "a distributed parameter"});
  tensor_.set_requires_grad(options.requires_grad);
}

at::Tensor DistributedParameter::gather() const {
  TESSERA_CHECK(
      tensor_.defined(),
      "DistributedParameter::gather: the parameter was never created.");
  return tensor_.clone();
}

InitMethod declared_init(const at::Tensor& tensor) {
  if (!sharding::is_deferred(tensor)) {
    return nullptr;
  }
  const auto* declared =
      sharding::deferred_init(*tensor.storage().unsafeGetStorageImpl())
          ->fill.target<DistributedFill>();
  return declared != nullptr && !declared->random ? declared->method : nullptr;
}

DistributedParameter DistributedModule::register_parameter(
    const std::string& name,
    DistributedParameter parameter) {
  register_parameter(
      name, parameter.tensor(), parameter.tensor().requires_grad());
  return parameter;
}

void init_parameters(const torch::nn::Module& module, uint64_t seed) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    TESSERA_CHECK(
        !sharding::has_page_key(tensor),
        "init_parameters: parameter '{}' is already wrapped, so its slices already have their values. Call it before tessera::wrap.",
        item.key());
    if (!sharding::is_deferred(tensor)) {
      continue;
    }
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    if (const auto* declared =
            sharding::deferred_init(storage)->fill.target<DistributedFill>()) {
      DistributedFill fill = *declared;
      fill.random = {seed, stream_of(item.key())};
      sharding::set_deferred_init(
          storage,
          {.fill = std::move(fill),
           .name = "parameter '" + item.key() + "'",
           .init_seed = seed});
    }
  }
}

} // namespace tessera
