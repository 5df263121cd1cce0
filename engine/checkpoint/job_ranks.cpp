// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/job_ranks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/ops/tensor.h>

#include <exception>

namespace tessera::engine {

namespace {

/// A group for CPU tensors of the rank's files.
std::unique_ptr<Communicator> join_for_files(
    World& world,
    const std::string& key,
    const ParallelMesh& mesh,
    ParallelGroup group) {
  const std::string name = std::string("files of ") + name_of(group) + " ranks";
  return world.join_group(
      name, key + "/" + name, at::kCPU, mesh.ranks(group, world.rank()));
}

} // namespace

JobRanks::JobRanks(sharding::Pager& pager)
    : pager_(&pager),
      rank_(pager.rank()),
      size_(pager.world_size()),
      stages_(nullptr, pager.rank() == 0) {}

JobRanks::JobRanks(
    World& world,
    const ParallelMesh& mesh,
    sharding::Pager& pager)
    : JobRanks(world, mesh, pager, world.unique_name("files")) {}

JobRanks::JobRanks(
    World& world,
    const ParallelMesh& mesh,
    sharding::Pager& pager,
    const std::string& key)
    : pager_(&pager),
      own_tensor_(join_for_files(world, key, mesh, ParallelGroup::kTensor)),
      tensor_(own_tensor_.get()),
      rank_(world.rank()),
      size_(world.size()),
      stages_(
          join_for_files(world, key, mesh, ParallelGroup::kPipeline),
          pager.rank() == 0 && tensor_->rank() == 0) {
  if (mesh.size(ParallelGroup::kExpert) > 1) {
    experts_.emplace(
        join_for_files(world, key, mesh, ParallelGroup::kAllExperts),
        mesh.index(ParallelGroup::kSameExperts, world.rank()) == 0 &&
            tensor_->rank() == 0);
  }
}

JobRanks::JobRanks(const torch::nn::Module& module)
    : tensor_(tensor_group_of(module)),
      rank_(tensor_rank()),
      size_(tensor_size()),
      stages_(nullptr, tensor_rank() == 0) {}

int JobRanks::tensor_rank() const {
  return tensor_ == nullptr ? 0 : tensor_->rank();
}

int JobRanks::tensor_size() const {
  return tensor_ == nullptr ? 1 : tensor_->size();
}

bool JobRanks::gathers_with(const ModelParts& parts, int number) const {
  const int parts_of_stage = parts.count() / stages_.count();
  return number / parts_of_stage == parts.own() / parts_of_stage;
}

Communicator* JobRanks::whole_model() const {
  return experts_ ? experts_->ranks() : stages_.ranks();
}

WaitCheck JobRanks::watch() const {
  return pager_ == nullptr ? WaitCheck() : pager_->watch_failures();
}

at::Tensor JobRanks::whole_value(
    const TensorSpec& spec,
    const at::Tensor& value) const {
  // The groups of a wrapped module are for tensors on the CPU.
  const at::Tensor own =
      pager_ == nullptr ? value.detach() : value.detach().cpu().contiguous();
  const at::Tensor whole =
      tensor_ == nullptr ? own : sharding::gather_whole(own, spec, *tensor_);
  return whole.cpu().contiguous();
}

void JobRanks::sum(const at::Tensor& values) {
  if (pager_ != nullptr) {
    pager_->sum_over_ranks(values);
  }
  for (Communicator* group : {tensor_, stages_.ranks()}) {
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
  for (Communicator* group : {tensor_, stages_.ranks()}) {
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
