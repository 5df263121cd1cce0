// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/divided_weight.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/tensor_keys.h"
#include "tessera/sharding/tensor_parallel/divided_tag.h"

#include <utility>

namespace tessera::sharding {

const DividedTag* divided_tag(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kDividedKey)
             ? dynamic_cast<const DividedTag*>(
                   tensor.unsafeGetTensorImpl()->get_backend_meta())
             : nullptr;
}

void set_divided_tag(
    const at::Tensor& tensor,
    std::shared_ptr<const DividedParameter> parameter,
    bool is_transposed,
    const c10::TensorImpl* owner) {
  auto tag = c10::make_intrusive<DividedTag>();
  tag->parameter = std::move(parameter);
  tag->is_transposed = is_transposed;
  tag->owner = owner == nullptr ? tensor.unsafeGetTensorImpl() : owner;
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(tag));
  add_key(tensor, kDividedKey);
}

void mark_transposed(const at::Tensor& view, const at::Tensor& weight) {
  if (const DividedTag* tag = divided_tag(weight)) {
    set_divided_tag(view, tag->parameter, !tag->is_transposed);
  }
}

void mark_divided(
    const at::Tensor& part,
    std::shared_ptr<const DividedParameter> parameter) {
  register_divided_operators();
  set_divided_tag(part, std::move(parameter), false);
}

const DividedParameter* divided_parameter(const at::Tensor& tensor) {
  const DividedTag* tag = divided_tag(tensor);
  return tag == nullptr ? nullptr : tag->parameter.get();
}

} // namespace tessera::sharding
