// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/gradient_token.h"

#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/interception/paged_storage.h"

#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>

#include <utility>

namespace tessera::sharding {

namespace {

// Marks a storage as a token's; there is nothing to free.
void gradient_token_deleter(void* /*context*/) {}

} // namespace

at::Tensor make_gradient_token(
    const at::Tensor& parameter,
    GradientTokenInfo& info) {
  const c10::Device device = parameter.device();
  c10::Storage storage(
      c10::Storage::use_byte_size_t{},
      parameter.storage().nbytes(),
      c10::DataPtr(nullptr, &info, &gradient_token_deleter, device),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  forbid_access(
      *storage.unsafeGetStorageImpl(),
      "the gradient of '" + info.parameter_name +
          "' is divided over the ranks: read it with "
          "engine.grad(), clip it with engine.clip_grad_norm().");
  auto token = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::computeDispatchKey(
          parameter.scalar_type(), c10::kStrided, device)),
      parameter.dtype());
  token.unsafeGetTensorImpl()->set_sizes_and_strides(
      parameter.sizes(), parameter.strides());
  add_page_key(token);
  return token;
}

GradientTokenInfo* gradient_token_info(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return nullptr;
  }
  const c10::DataPtr& data =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &gradient_token_deleter
             ? static_cast<GradientTokenInfo*>(data.get_context())
             : nullptr;
}

void retire_gradient_token(const at::Tensor& token) {
  remove_page_key(token);
  c10::StorageImpl& storage = *token.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, token.device()));
  forbid_access(storage, "this gradient belonged to an engine that is gone.");
}

} // namespace tessera::sharding
