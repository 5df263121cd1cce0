// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/job_ranks.h"

#include "tessera/engine/checkpoint/file_groups.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/sharding/parallel/group_operations.h"

#include <ATen/ops/tensor.h>

#include <exception>

namespace tessera::engine {

JobRanks::JobRanks(
    sharding::Pager& pager,
    FileGroups* groups,
    const torch::nn::Module& module)
    : pager_(&pager),
      rank_(pager.rank()),
      size_(pager.world_size()),
      specs_(specs_in(module)) {
  if (groups != nullptr) {
    tensor_ = groups->tensor.get();
    pipeline_ = groups->pipeline.get();
    rank_ = groups->job_rank;
    size_ = groups->job_size;
  }
  forget_unknown_ranks();
}

JobRanks::JobRanks(const torch::nn::Module& module)
    : tensor_(tensor_group_of(module)),
      rank_(tensor_rank()),
      size_(tensor_size()),
      specs_(specs_in(module)) {}

/// Without a group, other ranks' partitions are not known: each rank's own are
/// taken for the whole.
void JobRanks::forget_unknown_ranks() {
  if (tensor_ == nullptr) {
    for (auto& [tensor, spec] : specs_) {
      spec.sizes = spec.own_sizes();
      spec.axes.clear();
    }
  }
}

int JobRanks::tensor_rank() const {
  return tensor_ == nullptr ? 0 : tensor_->rank();
}

int JobRanks::tensor_size() const {
  return tensor_ == nullptr ? 1 : tensor_->size();
}

int JobRanks::stage() const {
  return pipeline_ == nullptr ? 0 : pipeline_->rank();
}

int JobRanks::stages() const {
  return pipeline_ == nullptr ? 1 : pipeline_->size();
}

bool JobRanks::is_first_of_stage() const {
  return (pager_ == nullptr || pager_->rank() == 0) && tensor_rank() == 0;
}

WaitCheck JobRanks::watch() const {
  return pager_ == nullptr ? WaitCheck() : pager_->watch_failures();
}

TensorSpec JobRanks::spec_of(const at::Tensor& tensor) const {
  return tessera::spec_of(tensor, specs_);
}

at::Tensor JobRanks::whole_value(
    const at::Tensor& tensor,
    const at::Tensor& value) const {
  // The groups of a wrapped module are for tensors on the CPU.
  const at::Tensor own =
      pager_ == nullptr ? value.detach() : value.detach().cpu().contiguous();
  const at::Tensor whole =
      tensor_ == nullptr
          ? own
          : sharding::gather_whole(own, spec_of(tensor), *tensor_);
  return whole.cpu().contiguous();
}

std::vector<std::string> JobRanks::texts_of_stages(const std::string& text) {
  if (pipeline_ == nullptr) {
    return {text};
  }
  return runtime::gather_texts(
      *pipeline_, text, "tensors of each pipeline stage", watch());
}

void JobRanks::broadcast_from_stage(int root, const at::Tensor& value) {
  if (stages() > 1 && is_first_of_stage() && value.numel() > 0) {
    // As bytes: not every backend supports every dtype.
    pipeline_
        ->broadcast(
            value.view({-1}).view(at::kByte),
            root,
            "a tensor of another pipeline stage")
        .wait(watch());
  }
}

void JobRanks::sum(const at::Tensor& values) {
  if (pager_ != nullptr) {
    pager_->sum_over_ranks(values);
  }
  for (Communicator* group : {tensor_, pipeline_}) {
    if (group != nullptr) {
      group
          ->all_reduce_sum(
              values, "sum over tensor-parallel and pipeline ranks")
          .wait(watch());
    }
  }
}

void JobRanks::max(const at::Tensor& values) {
  if (pager_ != nullptr) {
    pager_->max_over_ranks(values);
  }
  for (Communicator* group : {tensor_, pipeline_}) {
    if (group != nullptr) {
      group
          ->all_reduce_max(
              values, "maximum over tensor-parallel and pipeline ranks")
          .wait(watch());
    }
  }
}

void JobRanks::on_all_ranks(
    const std::string& what,
    const std::function<void()>& work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const at::Tensor failed = at::tensor({error ? 1.0 : 0.0}, at::kDouble);
  sum(failed);
  if (error) {
    std::rethrow_exception(error);
  }
  if (failed.item<double>() != 0) {
    runtime::blame_peer();
    TESSERA_FAIL(
        "{} failed on {}; see their errors.",
        what,
        runtime::count_text(
            static_cast<int64_t>(failed.item<double>()), "other rank"));
  }
}

} // namespace tessera::engine
