// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/subject_tensors.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/peer_failure.h"

#include <ATen/ops/tensor.h>

#include <exception>
#include <utility>

namespace tessera {

namespace {

class Collector : public StateVisitor {
 public:
  /// @param part what opaque states are of, in their names.
  Collector(SubjectTensors& tensors, std::string part)
      : tensors_(tensors), part_(std::move(part)) {}

  void elements(
      const ParameterRun& run,
      const std::string& name,
      const at::Tensor& values) override {
    tensors_.pieces.push_back(
        {run.parameter->name(), name, run.parameter_offset, values});
  }

  void replicated(
      const OptimizedParameter& parameter,
      const std::string& name,
      const at::Tensor& values) override {
    tensors_.wholes.push_back({parameter.name(), name, values});
  }

  void opaque(
      const std::string& name,
      const std::function<at::Tensor()>& save,
      const std::function<void(const at::Tensor&)>& load) override {
    tensors_.opaques.push_back(
        {name + "." + std::to_string(tensors_.opaques.size()) + part_,
         save,
         load});
  }

 private:
  SubjectTensors& tensors_;
  std::string part_;
};

void add_master_pieces(
    const CheckpointSubject& subject,
    std::vector<SubjectPiece>& pieces) {
  for (size_t g = 0; g < subject.pager.groups().size(); ++g) {
    const ParamGroup& group = *subject.pager.groups()[g];
    const at::Tensor& master = subject.optimizer.master(g);
    const FlatSpan shard =
        group.layout().shard(subject.pager.mesh().shard_rank);
    for (const PagedParameter& parameter : group.parameters()) {
      for (const FlatRun& run : runs_of_shard({&parameter.span, 1}, shard)) {
        pieces.push_back(
            {parameter.record.name(),
             kMasterState,
             shard.begin + run.shard_offset - parameter.span.begin,
             master.narrow(0, run.shard_offset, run.numel)});
      }
    }
  }
}

} // namespace

SubjectTensors tensors_of(const CheckpointSubject& subject) {
  SubjectTensors tensors;
  add_master_pieces(subject, tensors.pieces);
  const ShardMesh& mesh = subject.pager.mesh();
  Collector collector(
      tensors,
      ".part-" + std::to_string(mesh.shard_rank) + "-of-" +
          std::to_string(mesh.shard_size));
  subject.optimizer.visit_state(collector);
  for (const auto& buffer : subject.module.named_buffers()) {
    if (buffer.value().defined()) {
      tensors.buffers.emplace_back(buffer.key(), buffer.value());
    }
  }
  return tensors;
}

void on_all_ranks(
    Pager& pager,
    const std::string& what,
    const std::function<void()>& work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const at::Tensor failed = at::tensor({error ? 1.0 : 0.0}, at::kDouble);
  pager.sum_over_ranks(failed);
  if (error) {
    std::rethrow_exception(error);
  }
  if (failed.item<double>() != 0) {
    blame_peer();
    TESSERA_FAIL(
        what,
        " failed on ",
        failed.item<double>(),
        " other rank(s), whose errors say why.");
  }
}

} // namespace tessera
