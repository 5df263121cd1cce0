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
    : pager_(pager), groups_(groups), specs_(specs_in(module)) {
  if (groups_ == nullptr) { // other ranks' partitions are not known
    for (auto& [tensor, spec] : specs_) {
      spec.sizes = spec.own_sizes();
      spec.axes.clear();
    }
  }
}

int JobRanks::rank() const {
  return groups_ == nullptr ? pager_.rank() : groups_->job_rank;
}

int JobRanks::size() const {
  return groups_ == nullptr ? pager_.world_size() : groups_->job_size;
}

int JobRanks::tensor_rank() const {
  return groups_ == nullptr ? 0 : groups_->tensor->rank();
}

int JobRanks::tensor_size() const {
  return groups_ == nullptr ? 1 : groups_->tensor->size();
}

int JobRanks::stage() const {
  return groups_ == nullptr ? 0 : groups_->pipeline->rank();
}

int JobRanks::stages() const {
  return groups_ == nullptr ? 1 : groups_->pipeline->size();
}

TensorSpec JobRanks::spec_of(const at::Tensor& tensor) const {
  return tessera::spec_of(tensor, specs_);
}

at::Tensor JobRanks::whole_value(
    const at::Tensor& tensor,
    const at::Tensor& value) const {
  const at::Tensor own = value.detach().cpu().contiguous();
  return groups_ == nullptr
             ? own
             : sharding::gather_whole(own, spec_of(tensor), *groups_->tensor)
                   .contiguous();
}

std::vector<std::string> JobRanks::texts_of_stages(const std::string& text) {
  if (groups_ == nullptr) {
    return {text};
  }
  return runtime::gather_texts(
      *groups_->pipeline,
      text,
      "tensors of each pipeline stage",
      pager_.watch_failures());
}

void JobRanks::broadcast_from_stage(int root, const at::Tensor& value) {
  if (stages() > 1 && is_first_of_stage() && value.numel() > 0) {
    // As bytes: not every backend supports every dtype.
    groups_->pipeline
        ->broadcast(
            value.view({-1}).view(at::kByte),
            root,
            "a tensor of another pipeline stage")
        .wait(pager_.watch_failures());
  }
}

void JobRanks::sum(const at::Tensor& values) {
  pager_.sum_over_ranks(values);
  if (groups_ != nullptr) {
    for (Communicator* group :
         {groups_->tensor.get(), groups_->pipeline.get()}) {
      group
          ->all_reduce_sum(
              values, "sum over tensor-parallel and pipeline ranks")
          .wait(pager_.watch_failures());
    }
  }
}

void JobRanks::max(const at::Tensor& values) {
  pager_.max_over_ranks(values);
  if (groups_ != nullptr) {
    for (Communicator* group :
         {groups_->tensor.get(), groups_->pipeline.get()}) {
      group
          ->all_reduce_max(
              values, "maximum over tensor-parallel and pipeline ranks")
          .wait(pager_.watch_failures());
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
