// SPDX-License-Identifier: Apache-2.0
// `Pager`: making ranks start with equal values, and gradient hooks.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <unordered_set>
#include <utility>

namespace tessera::sharding {

namespace {

/// Notifies the pager that a parameter's gradient has arrived, after calling
/// the hook that the user had installed, if any.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(
      Pager& pager,
      size_t parameter,
      torch::autograd::PostAccumulateGradHook* user_hook)
      : pager_(pager), parameter_(parameter), user_hook_(user_hook) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (user_hook_ != nullptr) {
      (*user_hook_)(tensor);
    }
    pager_.on_gradient(parameter_);
  }

 private:
  Pager& pager_;
  size_t parameter_;
  torch::autograd::PostAccumulateGradHook* user_hook_; ///< owned by the pager
};

std::string signature_of(const std::vector<PageSpec>& pages) {
  std::ostringstream text;
  for (const PageSpec& page : pages) {
    text << page.name << ":";
    for (const auto& [record, index, span] : page.parameters) {
      text << record.name() << record.tensor.sizes()
           << record.tensor.scalar_type() << record.dtype
           << record.tensor.requires_grad();
      if (const auto* deferred =
              deferred_init(*record.tensor.storage().unsafeGetStorageImpl())) {
        text << "deferred" << deferred->seeds.size();
      }
      text << ";";
    }
  }
  return text.str();
}

} // namespace

void Pager::check_same_on_all_ranks(const std::vector<PageSpec>& pages) {
  if (world_size() == 1) {
    return;
  }
  const auto hash =
      static_cast<int64_t>(std::hash<std::string>{}(signature_of(pages)));
  const at::Tensor mine = at::tensor({hash}, at::kLong);
  const at::Tensor all = at::empty({world_size()}, at::kLong);
  control()
      .all_gather(all, mine, "comparison of the module across the ranks")
      .wait();
  for (int r = 1; r < world_size(); ++r) {
    TESSERA_CHECK(
        all[r].item<int64_t>() == all[0].item<int64_t>(),
        "wrap: the module on rank {} differs from rank 0's in the names, shapes, dtypes or requires_grad of its parameters, or in whether they are lazy. Build the same module on every rank.",
        r);
  }
}

void Pager::broadcast_seeds(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<uint64_t>> seeds;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto* deferred =
        is_deferred(parameter)
            ? deferred_init(*parameter.storage().unsafeGetStorageImpl())
            : nullptr;
    for (size_t i = 0; deferred != nullptr && i < deferred->seeds.size(); ++i) {
      if (std::find(seeds.begin(), seeds.end(), deferred->seeds[i]) ==
          seeds.end()) {
        seeds.push_back(deferred->seeds[i]);
      }
    }
  }
  if (seeds.empty()) {
    return;
  }
  const at::Tensor values =
      at::empty({static_cast<int64_t>(seeds.size())}, at::kLong);
  for (size_t i = 0; i < seeds.size(); ++i) {
    values[static_cast<int64_t>(i)] = static_cast<int64_t>(*seeds[i]);
  }
  control()
      .broadcast(values, 0, "broadcast of the seeds of lazy parameters")
      .wait();
  for (size_t i = 0; i < seeds.size(); ++i) {
    *seeds[i] =
        static_cast<uint64_t>(values[static_cast<int64_t>(i)].item<int64_t>());
  }
}

void Pager::broadcast_module(
    torch::nn::Module& module,
    const std::vector<PageSpec>& pages) {
  const c10::NoGradGuard no_grad;
  broadcast_seeds(module);
  std::unordered_set<const c10::StorageImpl*> done;
  const auto send = [&](const at::Tensor& tensor, const std::string& name) {
    const c10::Storage& storage = tensor.storage();
    if (storage.nbytes() == 0 || is_deferred(tensor) ||
        !done.insert(storage.unsafeGetStorageImpl()).second) {
      return;
    }
    const auto bytes = at::from_blob(
        storage.mutable_data(),
        {static_cast<int64_t>(storage.nbytes())},
        at::TensorOptions().dtype(at::kByte).device(tensor.device()));
    const std::string what = "broadcast of '" + name + "'";
    // A buffer may be on the CPU although the parameters are not.
    if (tensor.is_cpu()) {
      control().broadcast(bytes, 0, what).wait();
      return;
    }
    // First to the ranks of other replicas that correspond to rank 0, then from
    // each of them to its replica.
    if (mesh_.shard_rank == 0) {
      replicas_->broadcast(bytes, 0, what).wait();
    }
    data_->broadcast(bytes, 0, what).wait();
  };
  for (const PageSpec& page : pages) {
    for (const PagedParameter& parameter : page.parameters) {
      send(parameter.record.tensor, parameter.record.name());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && item.value().has_storage()) {
      send(item.value(), item.key());
    }
  }
}

void Pager::install_hooks() {
  user_hooks_.resize(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& tensor = parameter(i).record.tensor;
    if (!tensor.requires_grad()) {
      continue;
    }
    user_hooks_[i] =
        std::move(torch::autograd::impl::post_acc_grad_hooks(tensor));
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensor,
        std::make_unique<GradientHook>(*this, i, user_hooks_[i]->get()));
  }
}

void Pager::remove_hooks() {
  for (size_t i = 0; i < user_hooks_.size(); ++i) {
    if (user_hooks_[i]) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameter(i).record.tensor, std::move(*user_hooks_[i]));
    }
  }
  user_hooks_.clear();
}

} // namespace tessera::sharding
