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
      RestingTensor& state,
      int64_t offset) override {
    if (last_ != &state) {
      last_ = &state;
      tensors_.tensors.push_back(
          {state.dtype(),
           [&state] { return state.load(); },
           [&state](const at::Tensor& values) { state.store(values); }});
    }
    tensors_.pieces.push_back(
        {run.parameter->name(),
         name,
         run.parameter_offset,
         run.numel,
         tensors_.tensors.size() - 1,
         offset});
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
  const RestingTensor* last_ = nullptr;
};

void add_masters(const CheckpointSubject& subject, SubjectTensors& tensors) {
  ShardedOptimizer& optimizer = subject.optimizer;
  for (size_t g = 0; g < subject.pager.groups().size(); ++g) {
    const ParamGroup& group = *subject.pager.groups()[g];
    tensors.tensors.push_back(
        {group.master_dtype(),
         [&optimizer, g] { return optimizer.load_master(g); },
         [&optimizer, g](const at::Tensor& values) {
           optimizer.store_master(g, values);
         }});
    const FlatSpan shard =
        group.layout().shard(subject.pager.mesh().shard_rank);
    for (const PagedParameter& parameter : group.parameters()) {
      for (const FlatRun& run : runs_of_shard({&parameter.span, 1}, shard)) {
        tensors.pieces.push_back(
            {parameter.record.name(),
             kMasterState,
             shard.begin + run.shard_offset - parameter.span.begin,
             run.numel,
             tensors.tensors.size() - 1,
             run.shard_offset});
      }
    }
  }
}

} // namespace

SubjectTensors tensors_of(const CheckpointSubject& subject) {
  SubjectTensors tensors;
  add_masters(subject, tensors);
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

at::Tensor PieceReader::values(const SubjectPiece& piece) {
  if (held_ != piece.tensor) {
    values_ = at::Tensor(); // two need not be in memory at the same time
    values_ = tensors_.tensors[piece.tensor].load();
    held_ = piece.tensor;
  }
  return values_.narrow(0, piece.tensor_offset, piece.numel);
}

void PieceReader::store() {
  if (held_) {
    tensors_.tensors[*held_].store(values_);
  }
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
