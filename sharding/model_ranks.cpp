// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/model_ranks.h"

#include <utility>

namespace tessera::sharding {

ModelRanks::ModelRanks(
    World& world,
    const std::string& key,
    const ParallelMesh& mesh,
    const torch::nn::Module& module,
    std::unordered_set<const c10::TensorImpl*> divided,
    at::Device device)
    : tensor_(world.join_group(
          "tensor control",
          key + "/tensor",
          at::kCPU,
          mesh.ranks(ParallelGroup::kTensor, world.rank()))),
      pipeline_(world.join_group(
          "pipeline control",
          key + "/pipeline",
          at::kCPU,
          mesh.ranks(ParallelGroup::kPipeline, world.rank()))),
      tied_(world, key, mesh, module, device),
      divided_(std::move(divided)) {}

bool ModelRanks::counts(const at::Tensor& parameter) const {
  return !tied_.is_later_copy(parameter) &&
         (tensor_->rank() == 0 ||
          divided_.contains(parameter.unsafeGetTensorImpl()));
}

void ModelRanks::sum(const at::Tensor& values, const WaitCheck& check) {
  for (Communicator* group : {tensor_.get(), pipeline_.get()}) {
    group->all_reduce_sum(values, "sum over the parts of a model").wait(check);
  }
}

void ModelRanks::max(const at::Tensor& values, const WaitCheck& check) {
  for (Communicator* group : {tensor_.get(), pipeline_.get()}) {
    group->all_reduce_max(values, "maximum over the parts of a model")
        .wait(check);
  }
}

} // namespace tessera::sharding
