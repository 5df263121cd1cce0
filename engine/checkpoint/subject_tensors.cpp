// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/subject_tensors.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera::engine {

namespace {

/// Names of parameters in files, and their specs.
class Naming {
 public:
  explicit Naming(const WholeModel& model) : model_(model) {}

  std::string name(const std::string& own) const {
    return model_.find(own)->name();
  }

  TensorSpec spec(const at::Tensor& tensor, const std::string& own) const {
    TensorSpec spec = model_.job().spec_of(tensor);
    TESSERA_CHECK(
        !spec.is_divided() || tensor.is_contiguous(),
        "checkpoint: this rank's part of '{}' has sizes {} and strides {}; parts of parameters must be contiguous.",
        own,
        tensor.sizes(),
        tensor.strides());
    return spec;
  }

 private:
  const WholeModel& model_;
};

class Collector : public StateVisitor {
 public:
  /// @param part added to the names of opaque states.
  Collector(
      SubjectTensors& tensors,
      const sharding::Pager& pager,
      const Naming& naming,
      std::string part)
      : tensors_(tensors),
        pager_(pager),
        naming_(naming),
        part_(std::move(part)) {}

  void elements(
      const ParameterRun& run,
      const std::string& name,
      runtime::RestingTensor& state,
      int64_t offset) override {
    if (last_ != &state) {
      last_ = &state;
      tensors_.tensors.push_back(
          {state.dtype(),
           [&state] { return state.load(); },
           [&state](const at::Tensor& values) { state.store(values); }});
    }
    const std::string& own = run.parameter->name();
    const at::Tensor& tensor =
        pager_.parameter(pager_.find_parameter(own)).record.tensor;
    tensors_.pieces.push_back(
        {naming_.name(own),
         name,
         {naming_.spec(tensor, own).part().ranges,
          run.parameter_offset,
          run.numel},
         tensors_.tensors.size() - 1,
         offset});
  }

  void replicated(
      const OptimizedParameter& parameter,
      const std::string& name,
      const at::Tensor& values) override {
    tensors_.wholes.push_back({naming_.name(parameter.name()), name, values});
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
  const sharding::Pager& pager_;
  const Naming& naming_;
  std::string part_;
  const runtime::RestingTensor* last_ = nullptr;
};

void add_masters(
    const CheckpointPart& own_part,
    const Naming& naming,
    SubjectTensors& tensors) {
  ShardedOptimizer& optimizer = own_part.optimizer;
  const sharding::Pager& pager = own_part.pager;
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    const sharding::ParamGroup& group = *pager.groups()[g];
    tensors.tensors.push_back(
        {group.master_dtype(),
         [&optimizer, g] { return optimizer.load_master(g); },
         [&optimizer, g](const at::Tensor& values) {
           optimizer.store_master(g, values);
         }});
    const runtime::FlatSpan shard =
        group.layout().shard(pager.mesh().shard_rank);
    for (const sharding::PagedParameter& parameter : group.parameters()) {
      const std::string& own = parameter.record.name();
      const TensorPart part = sharding::sharded_spec(
                                  naming.spec(parameter.record.tensor, own),
                                  parameter,
                                  group.layout(),
                                  pager.mesh())
                                  .part();
      if (part.numel > 0) {
        tensors.pieces.push_back(
            {naming.name(own),
             kMasterState,
             part,
             tensors.tensors.size() - 1,
             parameter.span.begin + part.offset - shard.begin});
      }
    }
  }
}

/// @param index of the part.
SubjectTensors tensors_of_part(
    const CheckpointPart& part,
    const WholeModel& model,
    size_t index) {
  SubjectTensors tensors;
  const Naming naming(model);
  add_masters(part, naming, tensors);
  const sharding::ShardMesh& mesh = part.pager.mesh();
  Collector collector(
      tensors,
      part.pager,
      naming,
      ".part-" + std::to_string(mesh.shard_rank) + "-of-" +
          std::to_string(mesh.shard_size) +
          (index == 0 ? "" : ".group-" + std::to_string(index)));
  part.optimizer.visit_state(collector);
  if (index > 0) {
    return tensors;
  }
  for (const auto& buffer : part.module.named_buffers()) {
    if (buffer.value().defined()) {
      tensors.buffers.emplace_back(buffer.key(), buffer.value());
    }
  }
  return tensors;
}

} // namespace

WholePart::WholePart(const CheckpointPart& own)
    : part(own),
      model(JobRanks(own.pager, own.groups, own.module), own.module) {}

std::vector<WholePart> whole_parts_of(const CheckpointSubject& subject) {
  std::vector<WholePart> parts;
  for (const CheckpointPart& part : subject.parts) {
    parts.emplace_back(part);
  }
  return parts;
}

std::vector<SubjectTensors> tensors_of(const std::vector<WholePart>& parts) {
  std::vector<SubjectTensors> tensors;
  for (size_t i = 0; i < parts.size(); ++i) {
    tensors.push_back(tensors_of_part(parts[i].part, parts[i].model, i));
  }
  return tensors;
}

at::Tensor PieceReader::values(const SubjectPiece& piece) {
  if (held_ != piece.tensor) {
    values_ = at::Tensor(); // two need not be in memory at the same time
    values_ = tensors_.tensors[piece.tensor].load();
    held_ = piece.tensor;
  }
  return values_.narrow(0, piece.tensor_offset, piece.part.numel);
}

void PieceReader::store() {
  if (held_) {
    tensors_.tensors[*held_].store(values_);
  }
}

} // namespace tessera::engine
