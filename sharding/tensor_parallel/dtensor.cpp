// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensor_parallel/divided_tag.h"
#include "tessera/sharding/tensor_parallel/dtensor_impl.h"

#include <c10/core/GradMode.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace tessera {

bool is_dtensor(const at::Tensor& x) {
  return sharding::dtensor(x) != nullptr;
}

at::Tensor local_tensor(const at::Tensor& x) {
  return is_dtensor(x) ? sharding::local_of(x) : x;
}

at::Tensor full_tensor(const at::Tensor& x) {
  const sharding::DTensorImpl* wrapper = sharding::dtensor(x);
  if (wrapper == nullptr) {
    return x;
  }
  const at::Tensor local = sharding::local_of(x);
  return wrapper->divided() ? sharding::gather_parts(
                                  local,
                                  wrapper->divided()->dim,
                                  wrapper->divided()->split,
                                  wrapper->group())
                            : local;
}

at::Tensor shard_tensor(
    const at::Tensor& full,
    int64_t dim,
    const TensorParallel& tp) {
  if (is_dtensor(full) || tp.group->size() == 1) {
    return full;
  }
  dim = c10::maybe_wrap_dim(dim, full.dim());
  const sharding::DimSplit split(full.size(dim), tp.group->size());
  sharding::register_divided_operators();
  return sharding::make_dtensor(
      sharding::take_part(full, dim, split, *tp.group),
      sharding::DividedDim{dim, split},
      std::make_shared<const TensorParallel>(tp));
}

at::Tensor from_local_tensor(
    const at::Tensor& local,
    int64_t dim,
    const TensorParallel& tp) {
  const int ranks = tp.group->size();
  if (is_dtensor(local) || ranks == 1) {
    return local;
  }
  dim = c10::maybe_wrap_dim(dim, local.dim());
  sharding::register_divided_operators();
  return sharding::make_dtensor(
      local,
      sharding::even_parts(local, dim, ranks),
      std::make_shared<const TensorParallel>(tp));
}

} // namespace tessera

namespace tessera::sharding {

Layout::Layout(const at::Tensor& x) {
  if (const DTensorImpl* wrapper = dtensor(x)) {
    divided = wrapper->divided();
    dims = wrapper->dim();
    tp = wrapper->tp();
  }
}

at::Tensor with_layout(const at::Tensor& local, const Layout& layout) {
  return layout.tp == nullptr || !local.defined()
             ? local
             : make_dtensor(local, layout.divided, layout.tp);
}

namespace {

using torch::autograd::variable_list;

/// Leads from the gradient of a wrapper to that of its part.
struct ToPart : torch::autograd::Node {
  explicit ToPart(Layout of) : layout(std::move(of)) {}

  variable_list apply(variable_list&& gradients) override {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined() || !layout.divided) {
      return {full_tensor(gradient)};
    }
    return {operand(
        gradient,
        layout.divided->dim - layout.dims,
        layout.divided->split,
        *layout.tp->group)};
  }

  Layout layout;
};

/// Leads from the gradient of a part to that of its wrapper, where autograd
/// knows the wrapper only.
struct FromWrapper : torch::autograd::Node {
  explicit FromWrapper(Layout of) : layout(std::move(of)) {}

  variable_list apply(variable_list&& gradients) override {
    return {
        gradients[0].defined() ? with_layout(gradients[0], layout)
                               : at::Tensor()};
  }

  Layout layout;
};

} // namespace

DTensorImpl::DTensorImpl(
    at::Tensor local,
    std::optional<DividedDim> divided,
    std::shared_ptr<const TensorParallel> tp)
    : TensorImpl(
          c10::DispatchKeySet(c10::computeDispatchKey(
                                  std::nullopt,
                                  std::nullopt,
                                  local.device()))
              .add(kDividedKey),
          local.dtype(),
          local.device()),
      local_(std::move(local)),
      divided_(std::move(divided)),
      tp_(std::move(tp)) {
  std::vector<int64_t> sizes = local_.sizes().vec();
  if (divided_) {
    sizes[static_cast<size_t>(divided_->dim)] = divided_->split.size();
  }
  set_sizes_contiguous(sizes);
  set_storage_access_should_throw();
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::detached(
    bool allow_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(local_.detach(), divided_, tp_);
  copy->is_copy_ = is_copy_;
  copy->set_allow_tensor_metadata_change(allow_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter,
    bool allow_tensor_metadata_change) const {
  auto copy = detached(allow_tensor_metadata_change);
  copy->set_version_counter(version_counter);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter,
    bool allow_tensor_metadata_change) const {
  auto copy = detached(allow_tensor_metadata_change);
  copy->set_version_counter(std::move(version_counter));
  return copy;
}

void DTensorImpl::shallow_copy_from(
    const c10::intrusive_ptr<c10::TensorImpl>& /*impl*/) {
  TESSERA_FAIL(
      "set_data: the tensor of sizes {} is divided over the ranks of '{}'. Use full_tensor() to get a tensor that may be changed so.",
      sizes(),
      group().name());
}

DTensorImpl* dtensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kDividedKey)
             ? dynamic_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl())
             : nullptr;
}

DTensorImpl* divided_dtensor(const at::Tensor& tensor) {
  DTensorImpl* wrapper = dtensor(tensor);
  return wrapper != nullptr && wrapper->divided() ? wrapper : nullptr;
}

at::Tensor make_dtensor(
    const at::Tensor& local,
    std::optional<DividedDim> divided,
    const std::shared_ptr<const TensorParallel>& tp) {
  const at::Tensor x =
      at::detail::make_tensor<DTensorImpl>(local, std::move(divided), tp);
  connect(x);
  return x;
}

at::Tensor make_dtensor_like(
    const at::Tensor& local,
    int64_t dim,
    const DTensorImpl& like) {
  return make_dtensor(
      local,
      DividedDim{c10::maybe_wrap_dim(dim, local.dim()), like.divided()->split},
      like.tp());
}

DividedDim even_parts(const at::Tensor& local, int64_t dim, int ranks) {
  return {dim, DimSplit(local.size(dim) * ranks, ranks)};
}

void connect(const at::Tensor& x) {
  DTensorImpl* wrapper = dtensor(x);
  if (!wrapper->local().requires_grad()) {
    return;
  }
  const auto node = std::make_shared<ToPart>(Layout(x));
  node->set_next_edges(torch::autograd::collect_next_edges(wrapper->local()));
  torch::autograd::set_history(x, node);
  wrapper->set_bridge(node.get());
}

at::Tensor local_of(const at::Tensor& x) {
  const DTensorImpl* wrapper = dtensor(x);
  if (!x.requires_grad()) {
    return wrapper->local();
  }
  const auto* meta = torch::autograd::impl::get_autograd_meta(x);
  const bool is_ours =
      meta->grad_fn_.get() == wrapper->bridge() && meta->grad_fn_ != nullptr;
  if (is_ours && meta->hooks_.empty() && !meta->retains_grad_) {
    return wrapper->local();
  }
  at::Tensor local = wrapper->local().detach();
  if (at::GradMode::is_enabled()) {
    const auto node = std::make_shared<FromWrapper>(Layout(x));
    node->set_next_edges(torch::autograd::collect_next_edges(x));
    torch::autograd::set_history(local, node);
  }
  return local;
}

at::Tensor shared(const at::Tensor& full, Communicator& group) {
  return full.defined() && full.requires_grad() && at::GradMode::is_enabled()
             ? copy_to_group(full, group)
             : full;
}

bool same_parts(const DimSplit& a, const DimSplit& b) {
  if (a.size() != b.size() || a.parts() != b.parts()) {
    return false;
  }
  for (int part = 1; part < a.parts(); ++part) {
    if (a.begin(part) != b.begin(part)) {
      return false;
    }
  }
  return true;
}

at::Tensor operand(
    const at::Tensor& x,
    int64_t from_end,
    const DimSplit& split,
    Communicator& group) {
  if (!x.defined()) {
    return x;
  }
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper != nullptr && wrapper->divided()) {
    TESSERA_CHECK(
        &wrapper->group() == &group,
        "an operator has operands that are divided over two groups, '{}' and '{}'. Use full_tensor() on one of them.",
        wrapper->group().name(),
        group.name());
    if (wrapper->dim_from_end() == from_end &&
        same_parts(wrapper->divided()->split, split)) {
      return local_of(x);
    }
  }
  if (const DividedParameter* parameter = divided_parameter(x)) {
    const std::optional<int64_t> dim = parameter->spec.divided_dim(kTensorAxis);
    TESSERA_CHECK(
        dim && *dim - x.dim() == from_end &&
            same_parts(parameter->split(), split),
        "'{}', of which this rank has a part of sizes {}, is not divided as the tensor with which an operator combines it. Divide both layers alike, or leave this one out of the plan.",
        parameter->name(),
        x.sizes());
    return x;
  }
  const at::Tensor full = full_tensor(x);
  if (full.dim() < -from_end || full.size(from_end) == 1) {
    return shared(full, group);
  }
  return take_part(full, full.dim() + from_end, split, group);
}

} // namespace tessera::sharding
