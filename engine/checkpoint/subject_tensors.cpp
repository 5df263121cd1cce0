// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/subject_tensors.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <utility>

namespace tessera::engine {

namespace {

class Collector : public StateVisitor {
 public:
  /// @param part names this rank's part of opaque states.
  Collector(
      SubjectTensors& tensors,
      const ModelTensors& model,
      std::string part)
      : tensors_(tensors), model_(model), part_(std::move(part)) {}

  void elements(
      const ParameterSegment& segment,
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
    const sharding::ParameterRecord& record = segment.parameter->paged->record;
    tensors_.slices.push_back(
        {model_.find(record.name())->name(),
         name,
         {model_.spec_of(record.tensor).part().ranges,
          segment.parameter_offset,
          segment.numel},
         segment.parameter->group,
         tensors_.tensors.size() - 1,
         offset});
  }

  void replicated(
      const OptimizedParameter& parameter,
      const std::string& name,
      const at::Tensor& values) override {
    tensors_.full_tensors.push_back(
        {model_.find(parameter.name())->name(), name, values});
  }

  void opaque(
      const std::string& name,
      const std::function<at::Tensor()>& save,
      const std::function<void(const at::Tensor&)>& load,
      const std::function<void()>& reset) override {
    tensors_.opaques.push_back(
        {name + "." + std::to_string(tensors_.opaques.size()) + part_,
         save,
         load,
         reset});
  }

 private:
  SubjectTensors& tensors_;
  const ModelTensors& model_;
  std::string part_;
  const runtime::RestingTensor* last_ = nullptr;
};

void add_masters(
    const CheckpointSubject& subject,
    const ModelTensors& model,
    SubjectTensors& tensors) {
  sharding::GatherScopes& scopes = subject.pager.scopes();
  for (const auto& owned : subject.pager.pages()) {
    sharding::Page& page = *owned;
    tensors.tensors.push_back(
        {page.master_dtype(),
         [&scopes, &page] { return scopes.read_master(page); },
         [&page](const at::Tensor& values) {
           sharding::GatherScopes::write_master(page, values);
         }});
    const runtime::FlatSpan shard = page.spec().shard();
    for (const sharding::PagedParameter& parameter : page.parameters()) {
      const std::string& local = parameter.record.name();
      const TensorSlice part =
          sharding::sharded_spec(
              model.spec_of(parameter.record.tensor), parameter, page.spec())
              .part();
      if (part.numel > 0) {
        tensors.slices.push_back(
            {model.find(local)->name(),
             kMasterState,
             part,
             static_cast<size_t>(page.number()),
             tensors.tensors.size() - 1,
             parameter.span.begin + part.offset - shard.begin});
      }
    }
  }
}

/// This rank's part of what cannot be redistributed.
std::string part_text(const sharding::Pager& pager) {
  const auto coordinate = [](const DeviceMesh& mesh, const char* axis) {
    return std::to_string(mesh.index(axis)) + "-of-" +
           std::to_string(mesh.size(axis));
  };
  std::string text =
      ".part-" + coordinate(pager.ranks().of_module().mesh(), kShardAxis);
  const sharding::PageTable& pages = pager.pages();
  const auto found =
      std::find_if(pages.begin(), pages.end(), [](const auto& page) {
        return page->spec().of_experts;
      });
  if (found != pages.end()) {
    text +=
        ".experts-" + coordinate((*found)->spec().mesh, sharding::kPartAxis);
  }
  return text;
}

} // namespace

SubjectTensors tensors_of(
    const CheckpointSubject& subject,
    const ModelTensors& model) {
  SubjectTensors tensors;
  add_masters(subject, model, tensors);
  Collector collector(tensors, model, part_text(subject.pager));
  subject.optimizer.visit_state(collector);
  for (const auto& buffer : subject.module.named_buffers()) {
    if (buffer.value().defined()) {
      tensors.buffers.emplace_back(buffer.key(), buffer.value());
    }
  }
  return tensors;
}

at::Tensor SliceReader::values(const StateSlice& slice) {
  if (held_ != slice.tensor) {
    values_ = at::Tensor(); // two need not be in memory at the same time
    values_ = tensors_.tensors[slice.tensor].load();
    held_ = slice.tensor;
  }
  return values_.narrow(0, slice.tensor_offset, slice.part.numel);
}

void SliceReader::store() {
  if (held_) {
    tensors_.tensors[*held_].store(values_);
  }
}

} // namespace tessera::engine
